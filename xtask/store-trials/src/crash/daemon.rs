//! The daemon that is killed, in a folder in memory.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use file_host::HostFolder;
use lab::cargo::{self, Target};

/// How long a daemon may take until it serves.
const START_MAX: Duration = Duration::from_secs(60);

pub(super) struct Daemon {
    program: PathBuf,
    folder: PathBuf,
    manager: UnixDatagram,
    process: Option<Child>,
    is_kept: bool,
    pub journal_bytes_max: u64,
}

impl Daemon {
    /// Builds it and makes its folder.
    pub(super) fn prepare() -> Result<Self> {
        let target = Target::Program("xylem-xenstored");
        cargo::build(&[target])?;
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let folder = place.join(format!("xylem-crash-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let manager = UnixDatagram::bind(folder.join("notify"))?;
        manager.set_read_timeout(Some(START_MAX))?;
        let program = cargo::path(target)?;
        Ok(Self { program, folder, manager, process: None, is_kept: false, journal_bytes_max: 0 })
    }

    pub(super) fn host(&self) -> Result<HostFolder> {
        Ok(HostFolder::open(&self.folder)?)
    }

    pub(super) fn place(&self) -> std::path::Display<'_> {
        self.folder.display()
    }

    /// Leaves the files where they are.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Starts it and waits until it serves.
    pub(super) fn start(&mut self) -> Result<()> {
        let output =
            std::fs::File::options().create(true).append(true).open(self.folder.join("output"))?;
        let process = Command::new(&self.program)
            .args(["--no-fork", "--host", "dir:."])
            .env("XENSTORED_RUNDIR", &self.folder)
            .env("NOTIFY_SOCKET", self.folder.join("notify"))
            .env_remove("XENSTORED_PATH")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .with_context(|| format!("{} does not start", self.program.display()))?;
        self.process = Some(process);
        let mut said = [0; 64];
        let served = self.manager.recv(&mut said);
        served.with_context(|| format!("the daemon does not serve: {}", self.words()))?;
        Ok(())
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        for name in ["journal", "journal.new"] {
            let bytes = std::fs::metadata(self.folder.join(name)).map_or(0, |file| file.len());
            self.journal_bytes_max = self.journal_bytes_max.max(bytes);
        }
        ensure!(self.is_running()?, "the daemon ended by itself: {}", self.words());
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    pub(super) fn is_running(&mut self) -> Result<bool> {
        let Some(process) = &mut self.process else { return Ok(false) };
        Ok(process.try_wait()?.is_none())
    }

    /// The end of its log.
    pub(super) fn words(&self) -> String {
        let output = std::fs::read_to_string(self.folder.join("output")).unwrap_or_default();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ended = process.kill();
            let _waited = process.wait();
        }
        if !self.is_kept {
            // A leftover file does no harm.
            let _removed = std::fs::remove_dir_all(&self.folder);
        }
    }
}
