//! A real cell. This program is its own jail, as the daemon is, so it has a `main` of its own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use jail::{Cell, Jail};

/// Any block device will do: nobody reads it.
fn block_device() -> Option<String> {
    let listed = fs::read_dir("/sys/class/block").ok()?;
    let mut names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find_map(|name| Some(format!("/dev/{name}")).filter(|path| Path::new(path).exists()))
}

struct Trial {
    cell: Cell,
}

/// Asks this program to start a cell and to wait for its end, as a daemon does.
const DAEMON: &str = "--daemon";
/// Writes as long as it runs.
const WRITES: &str = "while :; do date +%s%N >/run/out/b; sleep 0.02; done";

impl Trial {
    fn new(disk: String, folder: String) -> Self {
        Self { cell: Cell { user: 1_900_040_000, group: 1_900_040_000, disk, folder } }
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Jail::default().cell_command(&self.cell, "trial", "/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    fn run(&self, script: &str) -> (Option<i32>, String) {
        let output = self.command(script).output().unwrap();
        let words = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&words).into_owned())
    }

    fn says(&self, script: &str, expected: &str) {
        let (_, words) = self.run(script);
        assert_eq!(words.trim(), expected, "{script}");
    }

    /// What [`WRITES`] wrote does not change any more.
    fn assert_ended(&self) {
        let mark = self.cell.files().join("b");
        let read = || fs::read_to_string(&mark).unwrap_or_default();
        let settle = || std::thread::sleep(Duration::from_millis(500));
        settle();
        let last = read();
        settle();
        assert_eq!(read(), last, "it still runs");
    }
}

fn main() -> ExitCode {
    if let Some(status) = jail::become_program(std::env::args_os()) {
        return status;
    }
    let mut words = std::env::args().skip(1);
    if words.next().is_some_and(|it| it == DAEMON) {
        let trial = Trial::new(words.next().unwrap(), words.next().unwrap());
        trial.command(WRITES).status().unwrap();
        return ExitCode::SUCCESS;
    }
    let is_root = fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
    let (true, Some(disk)) = (is_root, block_device()) else {
        println!("skipped: it needs root and a block device");
        return ExitCode::SUCCESS;
    };
    let folder = std::env::temp_dir().join(format!("jail-cell-{}", std::process::id()));
    let folder = folder.to_str().unwrap().to_owned();
    let trial = Trial::new(disk, folder);
    trial.cell.make_folder().unwrap();
    let (status, words) = trial.run("true");
    if status == Some(126) && words.contains("cannot have processes of its own") {
        println!("skipped: {words}");
    } else {
        assert_eq!((status, words.as_str()), (Some(0), ""));
        sees_only_its_own(&trial);
        can_do_no_more(&trial);
        its_end_is_told(&trial);
        ends_with_its_parent(&trial);
        begins_without_a_parent(&trial);
        ends_with_a_daemon_that_is_killed_at_any_time(&trial);
    }
    fs::remove_dir_all(&trial.cell.folder).unwrap();
    ExitCode::SUCCESS
}

fn sees_only_its_own(trial: &Trial) {
    trial.says("id -u; id -g; id -G", "1900040000\n1900040000\n1900040000");
    trial.says("echo $$", "1");
    let folders = ["bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr"];
    let there = folders.into_iter().filter(|name| Path::new("/").join(name).exists());
    let mut names: Vec<&str> = there.chain(["dev", "etc", "run"]).collect();
    names.sort_unstable();
    trial.says("ls /", &names.join("\n"));
    trial.says("ls /run /dev", "/dev:\nnull\nrandom\nurandom\nzero\n\n/run:\ndisk\nout");
}

fn can_do_no_more(trial: &Trial) {
    for script in [
        "echo x >/run/file",
        "echo x >/file",
        "echo x >/usr/file",
        "echo x >/run/disk",
        "chmod 666 /run/disk",
        "rm /run/disk",
        "mount -t tmpfs x /run/out",
        "unshare -n true",
        "cat /etc/passwd",
        "mknod /run/out/n b 7 0",
        "ls /proc/self",
        "chown 0 /run/out",
    ] {
        let (status, words) = trial.run(script);
        assert_ne!(status, Some(0), "{script}: {words}");
    }
    let (status, words) = trial.run("ulimit -v; ulimit -c");
    assert_eq!((status, words.as_str()), (Some(0), "524288\n0\n"));
}

fn its_end_is_told(trial: &Trial) {
    assert_eq!(trial.run("echo answer >/run/out/a; exit 7").0, Some(7));
    assert_eq!(fs::read_to_string(trial.cell.files().join("a")).unwrap(), "answer\n");
    // What it started ends with it.
    let left = "(sleep 600; echo b >/run/out/late) >/dev/null 2>&1 & echo a";
    let (status, words) = trial.run(left);
    assert_eq!((status, words.as_str()), (Some(0), "a\n"));
}

/// All of it ends when the process that was started is killed.
fn ends_with_its_parent(trial: &Trial) {
    let mark = trial.cell.files().join("b");
    let mut child = trial.command(WRITES).stdout(Stdio::null()).spawn().unwrap();
    while !mark.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    trial.assert_ended();
}

/// Nothing runs in a cell whose parent ended before it could ask for its signal: it has another one then.
fn begins_without_a_parent(trial: &Trial) {
    let words: Vec<String> =
        trial.command("echo ran").get_args().map(|it| it.to_str().unwrap().to_owned()).collect();
    let between = "/proc/$PPID/exe \"$@\"; echo $?";
    let output = Command::new("/bin/sh").args(["-c", between, "sh"]).args(&words).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert_eq!(told, "126\nxylem-jail: cannot end with its parent: what started it has ended\n");
}

fn ends_with_a_daemon_that_is_killed_at_any_time(trial: &Trial) {
    for after in 0..60 {
        let mut daemon = Command::new("/proc/self/exe")
            .args([DAEMON, &trial.cell.disk, &trial.cell.folder])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(500 * after));
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
    trial.assert_ended();
}
