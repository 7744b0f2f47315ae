//! `xylem-web`: the door of Xylem for remote clients.
//!
//! A process of its own, which has no right but to ask `xylemd`, as a user who is a member of one of its groups. What it may ask for
//! at all is decided there; what a remote client may ask for is decided here, and again there.

mod admit;
mod audit;
mod clients;
mod consoles;
mod daemon;
mod first_copy;
mod limited;
mod mirror;
mod oidc;
mod options;
mod own_writes;
mod problem;
mod routes;
mod running;
mod sampler;
mod serve;
mod shared;
mod tls;
mod traces;
mod turns;
mod views;
mod vm_tags;
mod xenapi_door;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api::Role;
use gate::{Access, Scope, Secret, Who, entry_line};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::audit::Audit;
use crate::oidc::Oidc;
use crate::options::{Command, Serve};
use crate::shared::{Shared, random};
use crate::xenapi_door::Door;

/// Threads that serve clients: more would take the CPUs of the daemons.
const THREADS: usize = 2;
/// The listening socket, as the service manager keeps it.
const LISTENER: &str = "listen";
/// For connections to hear that they are the last.
const STOP_WAIT: Duration = Duration::from_millis(50);
/// How often the file of clients is looked at.
const ACCESS_EVERY: Duration = Duration::from_secs(1);

/// The program, with its arguments.
#[must_use]
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match options::parse(arguments).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xylem-web: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Print(text) => {
            print!("{text}");
            Ok(())
        }
        Command::Clients { file, what } => clients::run(&file, what),
        Command::Tags { file, socket, what } => vm_tags::run(&file, &socket, what),
        Command::CheckLog(path) => {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let lines =
                gate::check_chain(&text, None).with_context(|| path.display().to_string())?;
            println!("{}: {lines} lines, none changed or missing", path.display());
            Ok(())
        }
        Command::Serve(serve) => {
            // Before anything else is opened.
            let kept = service_manager::tcp_listener(LISTENER);
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(THREADS)
                .enable_all()
                .build()
                .context("cannot start threads")?;
            let result = runtime.block_on(self::serve(*serve, kept));
            runtime.shutdown_timeout(Duration::from_secs(2));
            result
        }
    }
}

/// Serves the daemon behind this socket to these clients, without TLS, on a thread of its own that lives as long as the
/// process. Returns where.
///
/// # Errors
/// The clients' text is not understood, or the address is taken or not a loopback one.
pub fn serve_beside(socket: PathBuf, listen: SocketAddr, clients: &str) -> Result<SocketAddr> {
    let access = Access::parse(clients)?;
    let options = Serve {
        listen,
        tls: None,
        access: None,
        tags: None,
        log: None,
        socket,
        tries: false,
        xenapi: false,
        labels: None,
        rate: options::RATE,
        collector: None,
        oidc: None,
        prints: false,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let listener = runtime.block_on(self::listen(&options))?;
    let address = listener.local_addr()?;
    let shared =
        Arc::new(Shared::new(options.socket, None, None, Audit::default(), false, options.rate)?);
    shared.set_access(access);
    thread::spawn(move || {
        runtime.block_on(async {
            let router = routes::router(&shared, None);
            let (_never, stop) = watch::channel(false);
            let mirror = shared.mirror.follow(&shared.daemon);
            let open = shared.open.clone();
            let serving = serve::serve(listener, open, None, router, stop);
            tokio::join!(mirror, sampler::follow(&shared), views::follow(&shared), serving);
        });
    });
    Ok(address)
}

async fn serve(options: Serve, kept: Option<std::net::TcpListener>) -> Result<()> {
    let audit = match &options.log {
        Some(path) => Audit::open(path)?,
        None => Audit::default(),
    };
    let tls = match &options.tls {
        Some(files) => {
            if files.make {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let mut names = vec![host];
                names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
                let ip = options.listen.ip();
                if !ip.is_unspecified() && !ip.is_loopback() {
                    names.push(ip.to_string());
                }
                tls::make(&files.certificate, &files.key, names)?;
            }
            let ca = files.client_ca.as_deref();
            Some(tls::acceptor(&files.certificate, &files.key, ca)?)
        }
        None => None,
    };
    let listener = listen_on(&options, kept).await?;
    let address = listener.local_addr()?;
    let shared = Arc::new(Shared::new(
        options.socket,
        options.access.clone(),
        options.tags.clone(),
        audit,
        tls.is_some(),
        options.rate,
    )?);
    if let Some(settings) = options.oidc {
        let _first = shared.oidc.set(Arc::new(Oidc::new(settings)?));
    }
    shared.refresh_access()?;
    shared.refresh_tags()?;
    let token = if options.tries { Some(let_in(&shared)?) } else { None };
    let (stop, stopped) = watch::channel(false);
    let follower = Arc::clone(&shared);
    let follow = tokio::spawn(async move { follower.mirror.follow(&follower.daemon).await });
    let sampled = Arc::clone(&shared);
    let sample = tokio::spawn(async move { sampler::follow(&sampled).await });
    let viewed = Arc::clone(&shared);
    let views = tokio::spawn(async move { views::follow(&viewed).await });
    let refresher = Arc::clone(&shared);
    let refresh = tokio::spawn(refresh(refresher));
    traces::begin(&shared, options.collector.as_ref())?;
    announce(address, tls.is_some(), token.as_deref(), options.prints);
    let door = options.xenapi.then(|| facade(&shared, address, options.labels)).transpose()?;
    let router = routes::router(&shared, door.clone().map(xenapi_door::router));
    let serving = tokio::spawn(serve::serve(listener, shared.open.clone(), tls, router, stopped));
    let _told = service_manager::tell("READY=1");
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.send_replace(true);
    if let Some(door) = door {
        // No connection is used again by now.
        sleep(STOP_WAIT).await;
        door.end_sessions();
    }
    let _ended = serving.await;
    follow.abort();
    sample.abort();
    views.abort();
    refresh.abort();
    Ok(())
}

/// XenAPI at this address.
fn facade(shared: &Arc<Shared>, address: SocketAddr, labels: Option<PathBuf>) -> Result<Arc<Door>> {
    let host = match address.ip() {
        ip if ip.is_unspecified() => {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        }
        ip => ip.to_string(),
    };
    let door = Arc::new(Door::new(shared, host, address.port(), labels)?);
    let follower = Arc::clone(&door);
    tokio::spawn(async move { follower.follow().await });
    Ok(door)
}

/// Where clients come. A socket that an earlier process left to the manager is used if it is the right one: its clients have
/// waited, as if nobody had been away.
async fn listen_on(options: &Serve, kept: Option<std::net::TcpListener>) -> Result<TcpListener> {
    let is_it = |it: &std::net::TcpListener| it.local_addr().is_ok_and(|it| it == options.listen);
    let listener = match kept.filter(is_it) {
        Some(kept) => {
            kept.set_nonblocking(true)?;
            TcpListener::from_std(kept)?
        }
        None => {
            let _none = service_manager::forget(LISTENER);
            listen(options).await?
        }
    };
    if let Err(error) = service_manager::keep(LISTENER, listener.as_fd()) {
        eprintln!("<4>clients are refused while this is restarted: {error}");
    }
    Ok(listener)
}

async fn listen(options: &Serve) -> Result<TcpListener> {
    let address = options.listen;
    if options.tls.is_none() && !address.ip().is_loopback() {
        bail!(
            "{address}: without TLS only a loopback address is served; give --certificate and --key"
        );
    }
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// Lets one client in who has this token, as an admin.
fn let_in(shared: &Shared) -> Result<String> {
    let (secret, token) = Secret::token(&random::<32>()?);
    let who = Who { name: "you".to_owned(), role: Role::Admin, expires: None, scope: Scope::Host };
    let line = entry_line(&who, &secret).map_err(anyhow::Error::msg)?;
    shared.set_access(Access::parse(&line)?);
    Ok(token)
}

fn announce(address: SocketAddr, is_tls: bool, token: Option<&str>, prints: bool) {
    let scheme = if is_tls { "https" } else { "http" };
    match token {
        Some(token) => println!("{scheme}://{address}/#token={token}"),
        None if prints => println!("{scheme}://{address}"),
        None => eprintln!("<6>serving {scheme}://{address}"),
    }
}

/// Looks for changes of the files of clients and tags.
async fn refresh(shared: Arc<Shared>) {
    let mut last = String::new();
    loop {
        sleep(ACCESS_EVERY).await;
        let words = |what: &str, done: Result<()>| match done {
            Ok(()) => String::new(),
            Err(error) => format!("<3>{what}: {error:#}"),
        };
        let now = [
            words("nobody is let in", shared.refresh_access()),
            words("no VM has a tag", shared.refresh_tags()),
        ];
        let now = now.iter().filter(|it| !it.is_empty()).cloned().collect::<Vec<_>>().join("\n");
        if now != last && !now.is_empty() {
            eprintln!("{now}");
        }
        last = now;
    }
}
