//! `cargo xtask demo --web`: a simulated host in real time, and the web page before it.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::page;
use crate::web_host::{self, Options, WebHost};

/// Where the page is served, unless another port is given.
const PORT: u16 = 8470;

pub(super) struct Web {
    pub(super) port: u16,
    pub(super) seconds: Option<u64>,
}

impl Default for Web {
    fn default() -> Self {
        Self { port: PORT, seconds: None }
    }
}

impl Web {
    /// Shows it until the time is over, or this process is ended.
    pub(super) fn show(&self, options: &[&str]) -> Result<ExitCode> {
        println!("demo: the page");
        page::build()?;
        println!("demo: the programs");
        web_host::build()?;
        let mut host: Vec<_> = options.iter().map(|it| (*it).to_owned()).collect();
        if !options.contains(&"--vms") {
            host.extend(["--vms", "1000"].map(str::to_owned));
        }
        host.push("--busy".to_owned());
        let began = Instant::now();
        let mut shown = WebHost::start(&Options { host, port: self.port, ..Options::with_vms(0) })?;
        println!("demo: the host was there after {:.1} s", began.elapsed().as_secs_f32());
        println!("\n  {}\n", shown.url);
        let socket = shown.socket.display();
        println!(
            "Open it in a browser; Ctrl-C ends it. In a terminal: XYLEMD_SOCKET={socket} xy list"
        );
        let end = self.seconds.map(|it| Instant::now() + Duration::from_secs(it));
        while end.is_none_or(|end| Instant::now() < end) {
            shown.is_there()?;
            sleep(Duration::from_millis(200));
        }
        Ok(ExitCode::SUCCESS)
    }
}
