//! `cargo xtask demo --web`: a simulated host in real time, and the web page before it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lab::cargo::{self, Target};

use crate::page;

const HOST: Target<'_> = Target::Program("xylemd-sim");
const DOOR: Target<'_> = Target::Program("xylem-web");
/// Where the page is served, unless another port is given.
const PORT: u16 = 8470;
/// Time for the simulated VMs to be made.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

pub(super) struct Web {
    pub(super) port: u16,
    pub(super) seconds: Option<u64>,
}

impl Default for Web {
    fn default() -> Self {
        Self { port: PORT, seconds: None }
    }
}

/// A program that ends with this one.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

impl Web {
    /// Shows it until the time is over, or this process is ended.
    pub(super) fn show(&self, options: &[&str]) -> Result<ExitCode> {
        println!("demo: the page");
        page::build()?;
        println!("demo: the programs");
        cargo::build(&[HOST, DOOR])?;
        let socket = std::env::temp_dir().join(format!("xylem-demo-{}.sock", std::process::id()));
        let host = host(&socket, options)?;
        let web = self.web(&socket)?;
        let end = self.seconds.map(|it| Instant::now() + Duration::from_secs(it));
        let result = live(host, web, end);
        let _none = std::fs::remove_file(&socket);
        let _none = std::fs::remove_file(socket.with_extension("lock"));
        result.map(|()| ExitCode::SUCCESS)
    }

    fn web(&self, socket: &Path) -> Result<Program> {
        let mut command = Command::new(cargo::path(DOOR)?);
        command.arg("--try").arg("--listen").arg(format!("127.0.0.1:{}", self.port));
        command.arg("--socket").arg(socket).stdout(Stdio::piped());
        let mut web = Program(command.spawn().context("xylem-web does not start")?);
        let output = web.0.stdout.take().context("it has no output")?;
        let address = first_line(output).context("xylem-web has ended")?;
        let socket = socket.display();
        println!("\n  {address}\n");
        println!(
            "Open it in a browser. End it with Ctrl-C. In a terminal: XYLEMD_SOCKET={socket} xy list"
        );
        Ok(web)
    }
}

fn host(socket: &Path, options: &[&str]) -> Result<Program> {
    let mut command = Command::new(cargo::path(HOST)?);
    command.arg("--busy").arg("--socket").arg(socket).stdout(Stdio::piped());
    if !options.contains(&"--vms") {
        command.args(["--vms", "1000"]);
    }
    let mut host = Program(command.args(options).spawn().context("xylemd-sim does not start")?);
    let output = host.0.stdout.take().context("it has no output")?;
    let began = Instant::now();
    let line = first_line(output).context("xylemd-sim has ended")?;
    println!("demo: {line} ({:.1} s)", began.elapsed().as_secs_f32());
    anyhow::ensure!(began.elapsed() < BOOT_LIMIT, "that took too long");
    Ok(host)
}

/// The first line of a program's output. The rest is read as well, so that the program can go on writing.
fn first_line(output: ChildStdout) -> Option<String> {
    let mut lines = BufReader::new(output).lines();
    let first = lines.next()?.ok();
    std::thread::spawn(move || lines.for_each(drop));
    first
}

fn live(mut host: Program, mut web: Program, end: Option<Instant>) -> Result<()> {
    while end.is_none_or(|end| Instant::now() < end) {
        for (program, name) in [(&mut host, "xylemd-sim"), (&mut web, "xylem-web")] {
            if let Some(status) = program.0.try_wait()? {
                bail!("{name} has ended: {status}");
            }
        }
        sleep(Duration::from_millis(200));
    }
    Ok(())
}
