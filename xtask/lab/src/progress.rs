//! How far a download is: a bar on a terminal, a line now and then elsewhere.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::PROGRESS;

/// How often the folder is measured.
const TICK: Duration = Duration::from_millis(200);
/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Runs `download`, which puts `bytes` into `folder`, and shows how far it is.
pub(super) fn while_filling<T>(folder: &Path, bytes: u64, download: impl FnOnce() -> T) -> T {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| show(folder, bytes, &has_ended));
        let outcome = download();
        has_ended.store(true, Ordering::Relaxed);
        outcome
    })
}

fn show(folder: &Path, bytes: u64, has_ended: &AtomicBool) {
    let bar = ProgressBar::new(bytes);
    let template = "lab: {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("a template of our own"));
    let mut printed = Instant::now();
    while !has_ended.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        let done = size_of_files(folder);
        bar.set_position(done);
        if bar.is_hidden() && printed.elapsed() >= LINE_INTERVAL {
            printed = Instant::now();
            eprintln!("{PROGRESS}downloading: {} of {}", HumanBytes(done), HumanBytes(bytes));
        }
    }
    bar.finish_and_clear();
}

/// Bytes in the files of a folder. One that goes meanwhile does not count.
fn size_of_files(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}
