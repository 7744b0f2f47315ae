//! Clients of a daemon on a simulated host, over its socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::client::{CallError, Client, News};
use api::{Create, Object, Objects, Reply, Request, Target, Targets, Wait};
use sim_daemon::{Population, SimDaemon, WorldConfig};

/// A served host, whose socket is removed at the end.
struct Host(PathBuf);

impl Host {
    fn new(vms: u32) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("xylemd-sim-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = local_door::listen(&socket).unwrap();
        let world = WorldConfig { seed: 1, memory_mib: 65_536, cpus: 4 };
        local_door::serve(listener, Arc::new(SimDaemon::start(world).unwrap())).unwrap();
        Population::at(&socket, 1).unwrap().make(vms, |_| ()).unwrap();
        Self(socket)
    }

    fn client(&self) -> Client {
        Client::connect(&self.0).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _left_over = std::fs::remove_file(&self.0);
    }
}

fn call(client: &mut Client, request: &Request) -> Reply {
    client.call(request, |_| ()).unwrap_or_else(|error| panic!("{request:?}: {error}"))
}

fn names(client: &mut Client) -> Vec<String> {
    match call(client, &Request::List { targets: Vec::new() }) {
        Reply::Domains(rows) => rows.into_iter().filter_map(|row| row.name).collect(),
        other => panic!("{other:?}"),
    }
}

fn create(name: &str, rest: &str) -> Request {
    let config_text = format!("name = '{name}'\nkernel = '/boot/vmlinuz'\nmemory = 8\n{rest}");
    let (file, cwd) = (format!("{name}.cfg"), "/".to_owned());
    Request::Create(Create { file, config_text, cwd, progress: true, ..Create::default() })
}

fn target(name: &str) -> Target {
    Target(name.to_owned())
}

/// Reads up to the present, and returns VMs' states by name.
fn read(client: &mut Client, cursor: &mut Option<String>, vms: &mut BTreeMap<String, String>) {
    loop {
        let (classes, wait) = (vec!["vm".to_owned()], false);
        let request = Request::Objects { cursor: cursor.clone(), classes, wait };
        let Reply::Objects(Objects { cursor: next, is_last, changes, .. }) = call(client, &request)
        else {
            panic!("no objects")
        };
        for change in changes {
            match change.object {
                Object::Vm(Some(vm)) => vms.insert(vm.name, vm.state),
                Object::Vm(None) => None,
                other => panic!("{other:?}"),
            };
        }
        *cursor = Some(next);
        if is_last {
            return;
        }
    }
}

#[test]
fn a_host_with_many_vms_is_listed_and_followed() {
    let host = Host::new(100);
    let mut client = host.client();
    assert_eq!(names(&mut client).len(), 101);
    let (mut cursor, mut vms) = (None, BTreeMap::new());
    read(&mut client, &mut cursor, &mut vms);
    assert_eq!(vms.len(), 100);
    call(&mut client, &Request::Pause { target: target("web-5") });
    read(&mut client, &mut cursor, &mut vms);
    assert_eq!(vms["web-5"], "paused");
    match call(&mut client, &Request::Storage(api::StorageRequest::SrList)) {
        Reply::Srs(srs) => assert_eq!((srs.len(), srs[0].in_use), (1, 10), "{srs:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_do_not_wait_for_one_whose_guest_takes_its_time() {
    let host = Host::new(0);
    let mut slow = host.client();
    call(&mut slow, &create("deaf", "type = 'pv'\nextra = 'sim.behaviour=deaf'\n"));
    let socket = host.0.clone();
    let waiting = thread::spawn(move || {
        let targets = Targets::These(vec![target("deaf")]);
        let (wait, acpi, progress) = (Wait::Gone, false, false);
        slow.call(&Request::Shutdown { targets, wait, acpi, progress }, |_| ())
    });
    each(&socket, 8, |number, client| {
        let name = format!("vm{number}");
        let mut steps = 0;
        let made = client.call(&create(&name, "type = 'pvh'\n"), |news| {
            steps += usize::from(matches!(news, News::Progress(_)));
        });
        assert!(matches!(made, Ok(Reply::Created(_))) && steps > 2, "{made:?}, {steps} steps");
        call(client, &Request::Destroy { target: target(&name) });
    });
    assert!(!waiting.is_finished(), "its guest shuts down");
    call(&mut host.client(), &Request::Destroy { target: target("deaf") });
    assert!(waiting.join().unwrap().is_ok());
    assert_eq!(names(&mut host.client()), ["Domain-0"]);
}

/// Clients that do the same at the same time.
fn each(socket: &Path, clients: u32, deed: impl Fn(u32, &mut Client) + Sync) {
    thread::scope(|scope| {
        for number in 0..clients {
            let deed = &deed;
            scope.spawn(move || deed(number, &mut Client::connect(socket).unwrap()));
        }
    });
}

#[test]
fn time_goes_on_for_guests_as_it_does_outside() {
    let host = Host::new(0);
    let mut client = host.client();
    call(&mut client, &create("one", "type = 'pvh'\n"));
    let began = Instant::now();
    let refused = client.call(
        &Request::WaitFor { target: target("one"), state: "paused".to_owned(), timeout_s: Some(1) },
        |_| (),
    );
    match refused {
        Err(CallError::Refused(why)) => assert_eq!(why, "one: not paused within 1 s"),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
    let started = match call(&mut client, &Request::Uptime { targets: vec![target("one")] }) {
        Reply::Domains(rows) => rows[0].started_unix_s.unwrap(),
        other => panic!("{other:?}"),
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.as_secs().abs_diff(started) < 60, "it was started at {started}");
}

#[test]
fn a_disk_of_its_storage_is_made_used_and_refused_to_others() {
    let host = Host::new(1);
    let mut client = host.client();
    let disk = "type = 'pvh'\ndisk = ['files:web-0,,xvda,w']\n";
    match client.call(&create("thief", disk), |_| ()) {
        Err(CallError::Refused(why)) => assert!(why.contains("files:web-0"), "{why}"),
        other => panic!("{other:?}"),
    }
    call(&mut client, &Request::Destroy { target: target("web-0") });
    call(&mut client, &create("heir", disk));
    call(&mut client, &Request::Destroy { target: target("heir") });
    let destroy = api::StorageRequest::VdiDestroy { vdi: "files:web-0".to_owned() };
    call(&mut client, &Request::Storage(destroy));
}

/// Ends with the test, however that ends.
struct Program(std::process::Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn the_program_says_where_it_serves_and_is_busy() {
    use std::io::BufRead as _;
    let name = format!("xylemd-sim-program-{}.sock", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xylemd-sim"));
    command.args(["--vms", "5", "--busy", "--cpus", "2", "--memory", "4096", "--socket"]);
    command.arg(&socket).stdout(std::process::Stdio::piped());
    let mut program = Program(command.spawn().unwrap());
    let mut lines = std::io::BufReader::new(program.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert_eq!(first, "A simulated host with 5 VMs is served; end it with Ctrl-C. Try:");
    let list = lines.next().unwrap().unwrap();
    assert_eq!(list, format!("  XYLEMD_SOCKET={} xy list", socket.display()));
    let mut client = Client::connect(&socket).unwrap();
    let (mut cursor, mut vms) = (None, BTreeMap::new());
    read(&mut client, &mut cursor, &mut vms);
    let before = cursor.clone();
    let deadline = Instant::now() + Duration::from_secs(60);
    while cursor == before {
        assert!(Instant::now() < deadline, "nothing happens there");
        thread::sleep(Duration::from_millis(20));
        read(&mut client, &mut cursor, &mut vms);
    }
    drop(program);
    let _left_over = std::fs::remove_file(&socket);
    let _lock = std::fs::remove_file(socket.with_extension("lock"));
}
