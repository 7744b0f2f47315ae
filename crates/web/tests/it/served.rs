//! A simulated host, and a `xylem-web` in front of it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::Role;
use gate::{Scope, Secret, Who, entry_line, hash_password};
use serde_json::Value;
use sim_daemon::{Population, SimDaemon, WorldConfig};
use ureq::http::Response;
use ureq::{Agent, Body};

/// Of the user `ann`.
pub(crate) const PASSWORD: &str = "correct horse battery";

/// A folder that is removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("xylem-web-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _left_over = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_over = std::fs::remove_dir_all(&self.0);
    }
}

/// Serves a simulated host with so many VMs at this socket.
pub(crate) fn host_at(socket: &Path, vms: u32) {
    let listener = local_door::listen(socket).unwrap();
    let world = WorldConfig { seed: 1, memory_mib: 16_384, cpus: 4 };
    local_door::serve(listener, Arc::new(SimDaemon::start(world).unwrap())).unwrap();
    Population::at(socket, 1).unwrap().make(vms, |_| ()).unwrap();
}

/// A host that tests share which change none of its VMs.
pub(crate) fn shared_host() -> &'static Path {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let name = format!("xylem-web-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        host_at(&socket, 12);
        socket
    })
}

fn secret(role: Role) -> (Secret, String) {
    Secret::token(&[role as u8 + 1; 32])
}

/// The token of the client with this role.
pub(crate) fn token(role: Role) -> String {
    secret(role).1
}

/// The token of the client with this role that is limited to VMs with the tag `team-a`.
pub(crate) fn limited(role: Role) -> String {
    Secret::token(&[role as u8 + 0x81; 32]).1
}

/// The line of that client, with these tags.
pub(crate) fn limited_line(role: Role, tags: &[&str]) -> String {
    let secret = Secret::token(&[role as u8 + 0x81; 32]).0;
    let scope = Scope::Tagged(tags.iter().map(|&it| it.to_owned()).collect());
    let name = format!("limited-{}", role.as_str());
    entry_line(&Who { name, role, expires: None, scope }, &secret).unwrap()
}

pub(crate) struct Web {
    child: Child,
    pub(crate) url: String,
    pub(crate) folder: Folder,
    pub(crate) agent: Agent,
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// A status, and the body as JSON (or text).
pub(crate) type Said = (u16, Value);

impl Web {
    /// Before the host that is shared.
    pub(crate) fn new() -> Self {
        Self::before(shared_host(), &[])
    }

    pub(crate) fn before(socket: &Path, more: &[&str]) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_xylem-web"));
        Self::started(program, "127.0.0.1:0", socket, more)
    }

    /// By this program, with arguments of ours behind its own.
    pub(crate) fn started(
        mut program: Command,
        listen: &str,
        socket: &Path,
        more: &[&str],
    ) -> Self {
        let folder = Folder::new();
        let mut text = String::new();
        for role in Role::ALL {
            let who =
                Who { name: role.as_str().to_owned(), role, expires: None, scope: Scope::Host };
            text += &entry_line(&who, &secret(role).0).unwrap();
            text += &limited_line(role, &["team-a"]);
        }
        let ann =
            Who { name: "ann".to_owned(), role: Role::Operator, expires: None, scope: Scope::Host };
        let hash = hash_password(PASSWORD, &[3; 16]).unwrap();
        text += &entry_line(&ann, &Secret::Password(hash)).unwrap();
        std::fs::write(folder.path("clients"), text).unwrap();
        let mut child = program
            .args(["--listen", listen])
            .args(more.iter().map(|it| it.replace("FOLDER", folder.0.to_str().unwrap())))
            .arg("--socket")
            .arg(socket)
            .arg("--clients")
            .arg(folder.path("clients"))
            .arg("--tags")
            .arg(folder.path("tags"))
            .arg("--log")
            .arg(folder.path("log"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once("serving ").map(|(_, url)| url.to_owned())
        });
        let url = url.expect("it says where it serves");
        // What it says later is not to fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .max_idle_connections(0)
            .max_redirects(0)
            .build()
            .into();
        let web = Self { child, url, folder, agent };
        if web.url.starts_with("http://") && socket.exists() {
            web.wait_until_current();
        }
        web
    }

    /// Waits until it knows what the daemon knows.
    pub(crate) fn wait_until_current(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let (status, said) = self.get("/v1/vms?limit=1", Some(Role::Viewer));
            if status == 200 && said.as_array().is_some_and(|it| !it.is_empty()) {
                return;
            }
            assert!(Instant::now() < deadline, "it knows nothing: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }

    pub(crate) fn get(&self, path: &str, role: Option<Role>) -> Said {
        said(self.send("GET", path, role, &[], ""))
    }

    pub(crate) fn post(&self, path: &str, role: Role, body: &str) -> Said {
        said(self.send("POST", path, Some(role), &[], body))
    }

    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        role: Option<Role>,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Body> {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(role) = role {
            request = request.header("authorization", format!("Bearer {}", token(role)));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_owned()).unwrap();
        let config = self.agent.configure_request(request).allow_non_standard_methods(true).build();
        self.agent.run(config).unwrap()
    }

    /// As the service manager stops it.
    pub(crate) fn stop(&self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }

    /// The lines of the log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path("log")).unwrap()
    }
}

pub(crate) fn said(response: Response<Body>) -> Said {
    let status = response.status().as_u16();
    let mut text = String::new();
    response.into_body().into_reader().read_to_string(&mut text).unwrap();
    let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, json)
}

/// The words of an error.
pub(crate) fn detail(said: &Said) -> &str {
    said.1["detail"].as_str().unwrap_or_else(|| panic!("no error: {said:?}"))
}
