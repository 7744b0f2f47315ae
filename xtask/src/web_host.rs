//! A simulated host in real time, and `xylem-web` before it, for as long as somebody has this.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use lab::cargo::{self, Target};

pub(crate) const HOST: Target<'_> = Target::Program("xylemd-sim");
pub(crate) const DOOR: Target<'_> = Target::Program("xylem-web");

/// A program that ends with this one.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

impl Server {
    /// Starts a server that is [`lab::bound`] to this process, and returns its first line.
    pub(crate) fn start(command: &mut Command) -> Result<(Self, String)> {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut server = Self(child.with_context(|| format!("cannot start {command:?}"))?);
        let output = server.0.stdout.take().context("it has no output")?;
        let line = first_line(output).with_context(|| format!("has ended: {command:?}"))?;
        Ok((server, line))
    }

    fn has_ended(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            Some(status) => bail!("a server has ended: {status}"),
            None => Ok(()),
        }
    }
}

/// The first line of a program's output. The rest is read as well, so that the program can go on writing.
fn first_line(output: ChildStdout) -> Option<String> {
    let mut lines = BufReader::new(output).lines();
    let first = lines.next()?.ok();
    thread::spawn(move || lines.for_each(drop));
    first
}

/// How it is to be.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Further options of the simulated host.
    pub(crate) host: Vec<String>,
    /// Names and roles of clients; if there are none, one is let in by a token that is printed (`--try`).
    pub(crate) clients: Vec<(String, &'static str)>,
    /// Further options of `xylem-web`.
    pub(crate) web: Vec<String>,
    pub(crate) port: u16,
}

impl Options {
    pub(crate) fn with_vms(vms: u32) -> Self {
        let host = vec!["--vms".to_owned(), vms.to_string()];
        Self { host, clients: Vec::new(), web: Vec::new(), port: 0 }
    }
}

/// Both, in a folder of their own.
#[derive(Debug)]
pub(crate) struct WebHost {
    host: Server,
    web: Server,
    pub(crate) socket: PathBuf,
    /// With the token, if that was made for it.
    pub(crate) url: String,
    /// Of the clients, in their order.
    pub(crate) tokens: Vec<String>,
    folder: PathBuf,
}

impl Drop for WebHost {
    fn drop(&mut self) {
        let _left_over = std::fs::remove_dir_all(&self.folder);
    }
}

impl WebHost {
    /// Starts both; [`build`] has built them.
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let name = format!("xylem-web-host-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let socket = folder.join("sock");
        let mut host = lab::bound(cargo::path(HOST)?);
        let (host, _) = Server::start(host.arg("--socket").arg(&socket).args(&options.host))?;
        let clients = folder.join("clients");
        let token = |(name, role): &(String, &str)| token(&clients, name, role);
        let tokens = options.clients.iter().map(token).collect::<Result<_>>()?;
        // The host's daemons come before their door, as in its unit.
        let mut web = lab::bound("nice");
        web.args(["-n", "5"]).arg(cargo::path(DOOR)?).arg("--listen");
        web.arg(format!("127.0.0.1:{}", options.port)).arg("--socket").arg(&socket);
        if options.clients.is_empty() {
            web.arg("--try");
        } else {
            web.arg("--print").arg("--clients").arg(&clients);
        }
        let (web, url) = Server::start(web.args(&options.web).stderr(Stdio::null()))?;
        Ok(Self { host, web, socket, url, tokens, folder })
    }

    /// The address and port.
    pub(crate) fn address(&self) -> &str {
        let rest = self.url.trim_start_matches("http://");
        rest.split('/').next().unwrap_or(rest)
    }

    /// # Errors
    /// One of both has ended.
    pub(crate) fn is_there(&mut self) -> Result<()> {
        self.host.has_ended()?;
        self.web.has_ended()
    }
}

pub(crate) fn build() -> Result<()> {
    cargo::build(&[HOST, DOOR])
}

fn token(clients: &Path, name: &str, role: &str) -> Result<String> {
    let output = Command::new(cargo::path(DOOR)?)
        .args(["client", "add-token", name, "--role", role, "--clients"])
        .arg(clients)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
