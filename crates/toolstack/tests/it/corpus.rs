//! Configuration files of others, as found in public places: what each says, without its comments, and what becomes
//! of it here. Addresses and passwords are changed. `corpus/outcomes.txt` has an entry for each file, for people to
//! read: accepted, with its warnings, or refused, with every reason. A key that is newly supported changes it:
//! `UPDATE_EXPECT=1 cargo test -p toolstack corpus`, then read the difference.

use std::fmt::Write as _;
use std::path::Path;

use expect_test::expect_file;
use toolstack::xlcfg::{Source, Strictness, read};

/// Name and text of every file, by name.
fn corpus() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let entries = std::fs::read_dir(folder).expect("the corpus is there");
    let paths = entries.map(|entry| entry.expect("its folder can be read").path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "cfg"))
        .map(|path| {
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).expect("the file can be read"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn files_of_others_are_taken_or_refused_for_a_named_reason() {
    let mut outcomes = String::new();
    for (name, text) in corpus() {
        let file = format!("{name}.cfg");
        let source = Source { file: &file, text: &text, overrides: &[] };
        let reading = read(source, Strictness::Tolerant);
        let outcome = if reading.faults.is_empty() { "accepted" } else { "refused" };
        writeln!(outcomes, "{name}: {outcome}").expect("a string takes all");
        let faults = reading.faults.iter().map(ToString::to_string);
        for line in faults.chain(reading.warnings) {
            writeln!(outcomes, "    {line}").expect("a string takes all");
        }
    }
    expect_file!["../corpus/outcomes.txt"].assert_eq(&outcomes);
}

#[test]
fn the_corpus_is_large_and_every_file_names_its_origin() {
    let files = corpus();
    assert!(files.len() >= 60, "{} files", files.len());
    for (name, text) in files {
        let origin = text.lines().next().and_then(|line| line.strip_prefix("# origin: "));
        assert!(origin.is_some_and(|origin| !origin.is_empty()), "{name}");
    }
}
