//! Consoles by WebSocket, of a simulated host and of a pty that the test holds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::Role;
use local_door::{ChannelEnds, Relays, Served, open_place};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};
use service::{Ask, Daemon, Door, Gone, Kernel, News, Outlet, Place};
use sim_daemon::{Population, SimDaemon, WorldConfig};
use toolstack::channel::ChannelId;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Error, Message, WebSocket};

use crate::served::{Folder, PASSWORD, Web, said, token};

type Socket = WebSocket<TcpStream>;

/// A WebSocket, or the status and the words of a refusal.
fn open(web: &Web, path: &str, headers: &[(&str, &str)]) -> Result<Socket, (u16, String)> {
    let mut request = format!("ws://{}{path}", web.address()).into_client_request().unwrap();
    for (name, value) in headers {
        let name = tungstenite::http::HeaderName::try_from(*name).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(web.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::HandshakeError::Failure(Error::Http(response))) => {
            let body = response.body().clone().unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let detail = body["detail"].as_str().unwrap_or_default().to_owned();
            Err((response.status().as_u16(), detail))
        }
        Err(error) => panic!("{path}: {error}"),
    }
}

fn attach(web: &Web, path: &str, role: Role) -> Result<Socket, (u16, String)> {
    open(web, path, &[("authorization", &format!("Bearer {}", token(role)))])
}

/// Reads messages until all of this has come.
fn hear(socket: &mut Socket, expected: &[u8]) {
    let mut come = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !come.ends_with(expected) {
        assert!(Instant::now() < deadline, "only {:?}", come.escape_ascii().to_string());
        match socket.read() {
            Ok(Message::Binary(bytes)) => come.extend_from_slice(&bytes),
            Ok(Message::Ping(_)) => {}
            other => panic!("{other:?} after {:?}", come.escape_ascii().to_string()),
        }
    }
}

/// Reads until it is closed; says why it was.
fn closed(socket: &mut Socket) -> String {
    loop {
        match socket.read() {
            Ok(Message::Close(frame)) => {
                return frame.map(|it| it.reason.to_string()).unwrap_or_default();
            }
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn wait_for_log(web: &Web, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !web.log().contains(words) {
        assert!(Instant::now() < deadline, "no {words:?} in {}", web.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A daemon whose guests have the test's pty as their console, and its server as their screen.
struct WithPty {
    sim: SimDaemon,
    place: Mutex<String>,
    screen: String,
    kept: Mutex<BTreeMap<u64, ChannelEnds>>,
    relays: Relays,
}

fn new_pty() -> (File, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (File::from(master), path)
}

/// What a method of a daemon is: the simulated one's.
macro_rules! as_simulated {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $argument: $type)*) $(-> $result)? { self.sim.$name($($argument),*) })*
    };
}

type Hear<'a> = &'a mut dyn FnMut(News) -> Result<(), Gone>;

impl Daemon for WithPty {
    as_simulated! {
        fn wait(&self, ask: Ask, patience: Option<Duration>, door: &dyn Door, hear: Hear<'_>) -> Result<Option<toolstack::Reply>, Gone>;
        fn put(&self, request: toolstack::Request);
        fn refused(&self, asker: Option<toolstack::Asker>, role: Role, request: &api::Request);
        fn pause(&self, time: Duration);
        fn fresh_uuid(&self) -> Result<xen::Uuid, String>;
        fn unix_ms(&self, at: toolstack::Instant) -> u64;
        fn totals(&self) -> toolstack::work::Cost;
        fn activity(&self) -> api::Activity;
        fn traffic(&self) -> api::Traffic;
        fn pong(&self) -> api::Pong;
        fn kernel(&self) -> Kernel;
        fn host_defaults(&self) -> Result<Arc<toolstack::xlcfg::HostDefaults>, String>;
        fn peer(&self, request: api::PeerRequest) -> Result<api::Reply, String>;
        fn call(&self, peer: &str) -> Result<ChannelId, String>;
        fn lend(&self, channel: ChannelId, device: &str) -> Result<(), String>;
        fn pass(&self, channel: ChannelId, vdi: &str, device: &str, how: service::Passing) -> Result<(), String>;
        fn report(&self, channel: ChannelId, report: api::Report) -> Result<(), String>;
        fn store(&self) -> Result<Box<dyn service::StoreLink>, String>;
        fn store_status(&self, word: &str) -> Option<String>;
        fn storage(&self) -> Box<dyn storage::System>;
    }

    /// Simulated VMs have no screens.
    fn ask(&self, ask: Ask, hear: Hear<'_>) -> Result<toolstack::Reply, Gone> {
        match ask.request {
            toolstack::Request::Screen { .. } => Ok(toolstack::Reply::Text(self.screen.clone())),
            _ => self.sim.ask(ask, hear),
        }
    }

    fn relay(&self, channel: ChannelId, to: &Outlet) -> Result<(), String> {
        let place = match &to.place {
            Place::Terminal(_) => Place::Terminal(self.place.lock().unwrap().clone()),
            server @ Place::Server(_) => server.clone(),
        };
        let to = Outlet { place, ..to.clone() };
        let ends = self.kept.lock().unwrap().remove(&channel.0).unwrap();
        let open = || -> Result<OwnedFd, String> { open_place(&to) };
        self.relays.begin(&to, ends, open)
    }
}

impl Served for WithPty {
    fn keep(&self, ends: ChannelEnds) -> Option<ChannelId> {
        let mut kept = self.kept.lock().unwrap();
        let id = kept.len() as u64 + 1;
        kept.insert(id, ends);
        Some(ChannelId(id))
    }
}

struct Host {
    web: Web,
    daemon: Arc<WithPty>,
    guest: File,
    screen: std::net::TcpListener,
    _folder: Folder,
}

impl Host {
    fn new(more: &[&str]) -> Self {
        let folder = Folder::new();
        let socket = folder.path("sock");
        let world = WorldConfig { seed: 1, memory_mib: 16_384, cpus: 4 };
        let sim = SimDaemon::start(world).unwrap();
        let (guest, place) = new_pty();
        let screen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let daemon = Arc::new(WithPty {
            sim,
            place: Mutex::new(place),
            screen: screen.local_addr().unwrap().to_string(),
            kept: Mutex::default(),
            relays: Relays::default(),
        });
        let served: Arc<dyn Served> = Arc::clone(&daemon) as Arc<dyn Served>;
        local_door::serve(local_door::listen(&socket).unwrap(), served).unwrap();
        Population::at(&socket, 1).unwrap().make(5, |_| ()).unwrap();
        let web = Web::before(&socket, more);
        Self { web, daemon, guest, screen, _folder: folder }
    }
}

#[test]
fn bytes_go_both_ways_until_the_guest_or_the_client_ends() {
    let mut host = Host::new(&[]);
    let Host { web, guest, daemon, .. } = &mut host;
    let mut socket = attach(web, "/v1/vms/web-0/console", Role::Admin).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    socket.send(Message::Binary(bytes.clone().into())).unwrap();
    // As browsers send what is typed.
    socket.send(Message::Text("typed".into())).unwrap();
    let mut come = vec![0; 261];
    guest.read_exact(&mut come).unwrap();
    assert_eq!((&come[..256], &come[256..]), (&bytes[..], &b"typed"[..]));
    guest.write_all(&bytes).unwrap();
    hear(&mut socket, &bytes);
    // At another terminal: what a guest prints goes to whoever reads first.
    let (_other_guest, other_place) = new_pty();
    *daemon.place.lock().unwrap() = other_place;
    let mut other = attach(web, "/v1/vms/db-1/console?kind=pv&number=0", Role::Admin).unwrap();
    other.close(None).unwrap();
    wait_for_log(web, "the client has left");
    // Another console's end is not this one's.
    guest.write_all(b"still here").unwrap();
    hear(&mut socket, b"still here");
    // The last one that had its other end closes it.
    *guest = new_pty().0;
    assert_eq!(closed(&mut socket), "the host has closed it");
    wait_for_log(&host.web, "s: the host has closed it");
    let log = host.web.log();
    let opened = log.lines().find(|it| it.contains("relay console")).unwrap();
    assert!(opened.contains(r#""result":"ok""#) && opened.contains(r#""who":"admin""#), "{opened}");
    assert!(!log.contains("typed"), "{log}");
}

#[test]
fn a_limited_client_has_consoles_of_its_vms_for_as_long_as_they_are() {
    let host = Host::new(&[]);
    let socket = host._folder.path("sock");
    crate::limited::tag(&host.web, &socket, &["add", "web-0", "team-a"]);
    let bearer = format!("Bearer {}", crate::served::limited(Role::Admin));
    let open = |path: &str| open(&host.web, path, &[("authorization", &bearer)]);
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut console = loop {
        match open("/v1/vms/web-0/console") {
            Ok(console) => break console,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    for path in ["/v1/vms/db-1/console", "/v1/vms/db-1/screen", "/v1/vms/2/console"] {
        assert_eq!(open(path).unwrap_err().0, 404, "{path}");
    }
    assert_eq!(open("/v1/vms/db-1/console").unwrap_err().1, "db-1 is not a VM here");
    let began = Instant::now();
    crate::limited::tag(&host.web, &socket, &["remove", "web-0", "team-a"]);
    assert_eq!(closed(&mut console), "you are not let in any more");
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn a_client_that_breaks_off_leaves_its_place() {
    let host = Host::new(&[]);
    let open_all = || (0..8).map(|_| attach(&host.web, "/v1/vms/web-0/console", Role::Admin));
    let sockets: Vec<_> = open_all().collect::<Result<_, _>>().unwrap();
    let more = attach(&host.web, "/v1/vms/web-0/console", Role::Admin).unwrap_err();
    assert_eq!(more, (429, "admin has 8 consoles open; close one".to_owned()));
    for socket in sockets {
        socket.get_ref().shutdown(std::net::Shutdown::Both).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while attach(&host.web, "/v1/vms/web-0/console", Role::Admin).is_err() {
        assert!(Instant::now() < deadline, "places are not given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_screen_is_a_socket_of_the_subprotocol_that_is_offered() {
    let host = Host::new(&[]);
    let headers = [
        ("authorization", format!("Bearer {}", token(Role::Admin))),
        ("sec-websocket-protocol", "binary".to_owned()),
    ];
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut socket = open(&host.web, "/v1/vms/web-0/screen", &headers).unwrap();
    let (mut screen, _) = host.screen.accept().unwrap();
    screen.write_all(b"RFB 003.008\n").unwrap();
    hear(&mut socket, b"RFB 003.008\n");
    drop(screen);
    assert_eq!(closed(&mut socket), "the host has closed it");
    let simulated = attach(&Web::new(), "/v1/vms/web-0/screen", Role::Admin).unwrap_err();
    assert_eq!(simulated.0, 409);
    let words = "has no screen; HVM domains have one unless their vnc = 0";
    assert!(simulated.1.ends_with(words), "{simulated:?}");
}

#[test]
fn only_admins_from_our_own_pages_get_consoles() {
    let host = Host::new(&[]);
    let (web, path) = (&host.web, "/v1/vms/web-0/console");
    for role in [Role::Viewer, Role::Operator] {
        let why =
            format!("not permitted: this needs the role admin, and yours is {}", role.as_str());
        assert_eq!(attach(web, path, role).unwrap_err(), (403, why));
    }
    assert!(web.log().contains("yours is operator"), "{}", web.log());
    assert_eq!(open(web, path, &[]).unwrap_err().0, 401);
    let bearer = format!("Bearer {}", token(Role::Admin));
    let bearer = ("authorization", bearer.as_str());
    let foreign = open(web, path, &[bearer, ("origin", "https://evil.example")]).unwrap_err();
    assert_eq!(foreign, (403, "this comes from a page of another site".to_owned()));
    let plain = said(web.send("GET", path, Some(Role::Admin), &[], ""));
    assert_eq!(
        (plain.0, plain.1["detail"].as_str()),
        (426, Some("this is a WebSocket: ask for the upgrade to one"))
    );
    for (query, words) in [
        ("?kind=vga", "kind \"vga\" is none of pv and serial"),
        ("?number=x", "\"x\" is not a console's number, such as 0"),
    ] {
        let refused = attach(web, &format!("{path}{query}"), Role::Admin).unwrap_err();
        assert_eq!(refused, (400, words.to_owned()));
    }
    let nobody = attach(web, "/v1/vms/nobody/console", Role::Admin).unwrap_err();
    assert_eq!(nobody, (409, "nobody: no such domain; `xy list` shows them all".to_owned()));
}

#[test]
fn a_browsers_session_opens_sockets_from_its_own_page_alone_until_it_ends() {
    let mut host = Host::new(&[]);
    let web = &host.web;
    // `ann` is an operator; here she is to be more.
    let clients = std::fs::read_to_string(web.folder.path("clients")).unwrap();
    let more = clients.replace("user ann operator", "user ann admin");
    assert_ne!(more, clients, "{clients}");
    std::fs::write(web.folder.path("clients"), more).unwrap();
    let body = format!(r#"{{"name":"ann","password":"{PASSWORD}"}}"#);
    let log_in = || web.send("POST", "/v1/session", None, &[], &body);
    let deadline = Instant::now() + Duration::from_secs(30);
    let cookie = loop {
        let response = log_in();
        let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
        if said(response).1["role"] == "admin" {
            break cookie.split(';').next().unwrap().to_owned();
        }
        assert!(Instant::now() < deadline, "she is no admin");
        std::thread::sleep(Duration::from_millis(200));
    };
    let cookie = ("cookie", cookie.as_str());
    let path = "/v1/vms/web-0/console";
    let without = open(web, path, &[cookie]).unwrap_err();
    assert_eq!(without, (403, "with a session, a WebSocket needs the header Origin".to_owned()));
    assert_eq!(open(web, path, &[cookie, ("origin", "https://evil.example")]).unwrap_err().0, 403);
    let origin = web.url.clone();
    let mut socket = open(web, path, &[cookie, ("origin", &origin)]).unwrap();
    host.guest.write_all(b"login: ").unwrap();
    hear(&mut socket, b"login: ");
    let ended = web.send("DELETE", "/v1/session", None, &[cookie, ("xylem-request", "1")], "");
    assert_eq!(ended.status(), 204);
    assert_eq!(closed(&mut socket), "you are not let in any more");
}

#[test]
fn clients_of_xenapi_get_the_console_that_they_were_told_of() {
    let host = Host::new(&["--xenapi"]);
    let web = &host.web;
    let call = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": 1 });
        let response = said(web.send("POST", "/jsonrpc", None, &[], &body.to_string()));
        assert_eq!(response.0, 200, "{response:?}");
        response.1["result"].clone()
    };
    let log_in = |role: Role| {
        let session =
            call("session.login_with_password", json!([role.as_str(), token(role), "1.0", "test"]));
        session.as_str().unwrap_or_else(|| panic!("no session for {role:?}")).to_owned()
    };
    let (admin, viewer) = (log_in(Role::Admin), log_in(Role::Viewer));
    let deadline = Instant::now() + Duration::from_secs(30);
    let [drawn, path] = loop {
        let vms = call("VM.get_by_name_label", json!([admin, "web-0"]));
        let consoles = call("VM.get_consoles", json!([admin, vms[0]]));
        if let Some([drawn, text]) = consoles.as_array().map(Vec::as_slice) {
            break [drawn, text].map(|console| {
                let location = call("console.get_location", json!([admin, console]));
                let (_, path) = location.as_str().unwrap().split_once("/console").unwrap();
                path.to_owned()
            });
        }
        assert!(Instant::now() < deadline, "no console: {vms} {consoles}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let with = |session: &str| format!("/console{path}&session_id={session}");
    let mut socket = open(web, &with(&admin), &[("sec-websocket-protocol", "binary")]).unwrap();
    socket.send(Message::Binary(b"hello".as_slice().into())).unwrap();
    let mut come = [0; 5];
    (&host.guest).read_exact(&mut come).unwrap();
    assert_eq!(&come, b"hello");
    assert_eq!(open(web, &with(&viewer), &[]).unwrap_err().0, 403);
    assert_eq!(open(web, &with("OpaqueRef:none"), &[]).unwrap_err().0, 401);
    let unknown = open(web, &format!("/console?uuid=x&session_id={admin}"), &[]).unwrap_err();
    assert_eq!(unknown, (404, "x is not a console here".to_owned()));
    // As Xen Orchestra's server does; a browser would send a cookie for a page of any site.
    let cookie = ("cookie", &*format!("a=b; session_id={admin}"));
    let bare = format!("/console{path}");
    let sent = open(web, &bare, &[cookie, ("sec-websocket-protocol", "binary")]);
    drop(sent.unwrap());
    // The same on a screen, for a viewer that knows nothing else.
    let mut screen = open(web, &format!("/console{drawn}"), &[cookie]).unwrap();
    hear(&mut screen, b"RFB 003.008\n");
    for said in [&b"RFB 003.008\n"[..], &[1], &[1], &[4, 1, 0, 0, 0, 0, 0, b'x']] {
        screen.send(Message::Binary(said.into())).unwrap();
    }
    let mut typed = [0];
    (&host.guest).read_exact(&mut typed).unwrap();
    assert_eq!(&typed, b"x");
    drop(screen);
    let of_page = [cookie, ("origin", "https://elsewhere.example")];
    assert_eq!(open(web, &bare, &of_page).unwrap_err().0, 401);
    call("session.logout", json!([admin]));
    assert_eq!(closed(&mut socket), "you are not let in any more");
}

#[test]
fn a_simulated_guest_shows_what_it_has_printed() {
    let web = Web::new();
    let mut socket = attach(&web, "/v1/vms/web-0/console", Role::Admin).unwrap();
    hear(&mut socket, b"\r\n");
    socket.send(Message::Binary(b"echo\r".as_slice().into())).unwrap();
    hear(&mut socket, b"echo\r\n");
}
