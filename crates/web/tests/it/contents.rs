//! The contents of VDIs, as clients of XAPI fetch and send them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{PieceHeader, Role};
use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use sim_daemon::{Population, SimDaemon, WorldConfig};
use ureq::http::Response;
use ureq::{Body, SendBody};

use crate::served::{Folder, PASSWORD, Web, limited, said, token};
use crate::xenapi::Client;

const BYTES: usize = (5 << 20) + 512;

/// A host whose VDIs have bytes, and an admin's session.
struct Host {
    web: Web,
    folder: Folder,
    session: String,
}

/// A VDI, and the file that has its bytes.
struct Vdi {
    reference: String,
    uuid: String,
    file: File,
}

impl Host {
    fn new() -> Self {
        let folder = Folder::new();
        let socket = folder.path("sock");
        let listener = local_door::listen(&socket).unwrap();
        let world = WorldConfig { seed: 1, memory_mib: 16_384, cpus: 4 };
        let daemon = SimDaemon::start(world).unwrap().with_disks(folder.path(""));
        local_door::serve(listener, Arc::new(daemon)).unwrap();
        Population::at(&socket, 1).unwrap().make(3, |_| ()).unwrap();
        let web = Web::before(&socket, &["--xenapi", "--rate", "10000"]);
        let session = Client::log_in(&web, "admin", &token(Role::Admin)).unwrap().session;
        Self { web, folder, session }
    }

    fn call(&self, method: &str, params: &[Value]) -> Value {
        let client = Client { web: &self.web, session: self.session.clone() };
        client.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The first SR, once it is known.
    fn sr(&self) -> (String, String) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let client = Client { web: &self.web, session: self.session.clone() };
        loop {
            let all = client.call("SR.get_all_records", &[]);
            let all = all.as_ref().ok().and_then(Value::as_object);
            if let Some((sr, record)) = all.and_then(|it| it.iter().next()) {
                return (sr.clone(), record["name_label"].as_str().unwrap().to_owned());
            }
            assert!(Instant::now() < deadline, "there is no SR");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn vdi(&self, name: &str) -> Vdi {
        let (sr, of) = self.sr();
        let record = json!({ "SR": sr, "virtual_size": BYTES.to_string(), "name_label": name });
        let reference = self.call("VDI.create", &[record]).as_str().unwrap().to_owned();
        let found = self.call("VDI.get_record", &[json!(reference)]);
        assert_eq!(found["virtual_size"], json!(BYTES));
        let location = found["location"].as_str().unwrap();
        let mut options = File::options();
        let path = self.folder.path(&format!("{of}:{location}"));
        let file = options.read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        Vdi { reference, uuid: found["uuid"].as_str().unwrap().to_owned(), file }
    }

    fn task(&self) -> String {
        let task = self.call("task.create", &[json!("contents"), json!("of a test")]);
        task.as_str().unwrap().to_owned()
    }

    fn ended(&self, task: &str) -> Value {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let record = self.call("task.get_record", &[json!(task)]);
            if record["status"] != "pending" && record["status"] != "cancelling" {
                return record;
            }
            assert!(Instant::now() < deadline, "the task does not end: {record}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn path(&self, way: &str, vdi: &Vdi, more: &str) -> String {
        format!("/{way}_raw_vdi/?vdi={}&session_id={}{more}", vdi.reference, self.session)
    }

    fn put(&self, path: &str, body: impl ureq::AsSendBody) -> Response<Body> {
        self.web.agent.put(format!("{}{path}", self.web.url)).send(body).unwrap()
    }

    fn get(&self, path: &str) -> Response<Body> {
        self.web.send("GET", path, None, &[], "")
    }

    /// A connection with a request that may go on.
    fn begun(&self, words: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.web.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "{words}\r\nHost: x\r\n\r\n").unwrap();
        stream
    }
}

impl Vdi {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}

/// With zeros, within pieces and in the place of some.
fn data() -> Vec<u8> {
    let mut data = vec![0; BYTES];
    data[..5].copy_from_slice(b"begin");
    for (at, byte) in data[(2 << 20) - 7..3 << 20].iter_mut().enumerate() {
        *byte = u8::try_from(at % 251).unwrap();
    }
    data[BYTES - 3..].copy_from_slice(b"end");
    data
}

fn all(response: Response<Body>) -> Vec<u8> {
    let mut bytes = Vec::new();
    response.into_body().into_reader().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The head of an answer.
fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn what_is_imported_is_exported_again_and_the_tasks_say_so() {
    let host = Host::new();
    let vdi = host.vdi("disk");
    vdi.file.write_all_at(&[9; 4096], 1 << 20).unwrap();
    let task = host.task();
    let more = format!("&format=raw&task_id={task}");
    let response = host.put(&host.path("import", &vdi, &more), &data()[..]);
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["task-id"], task.as_str());
    assert_eq!(all(response), b"");
    let record = host.ended(&task);
    assert_eq!(
        (&record["status"], &record["progress"]),
        (&json!("success"), &json!(1.0)),
        "{record}"
    );
    assert_eq!(record["result"], format!("<value>{}</value>", vdi.reference));
    assert!(vdi.bytes() == data(), "other bytes than were sent");

    let task = host.task();
    let response = host.get(&host.path("export", &vdi, &format!("&task_id={task}")));
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    let name = format!("attachment; filename=\"{}.raw\"", vdi.uuid);
    assert_eq!(response.headers()["content-disposition"], name.as_str());
    assert!(all(response) == data(), "other bytes than are there");
    let record = host.ended(&task);
    assert_eq!((&record["status"], &record["result"]), (&json!("success"), &json!("")), "{record}");

    // Less than all, without a length, and by the UUID.
    let part = vec![7; (1 << 20) + 5];
    let path = format!("/import_raw_vdi?vdi={}&session_id={}", vdi.uuid, host.session);
    let response = host.put(&path, SendBody::from_reader(&mut &part[..]));
    assert_eq!(response.status(), 200);
    let task = response.headers()["task-id"].to_str().unwrap().to_owned();
    assert_eq!(all(response), b"");
    assert_eq!(host.ended(&task)["status"], "success");
    let mut expected = data();
    expected[..part.len()].copy_from_slice(&part);
    assert!(vdi.bytes() == expected, "other bytes than were sent");

    // Pieces, as XAPI has them too.
    let pieces =
        [&PieceHeader::of(4 << 20, 3).encode()[..], b"abc", &PieceHeader::of(0, 0).encode()];
    let response = host.put(&host.path("import", &vdi, "&chunked=true"), &pieces.concat()[..]);
    assert_eq!((response.status().as_u16(), all(response)), (200, Vec::new()));
    expected[4 << 20..(4 << 20) + 3].copy_from_slice(b"abc");
    assert!(vdi.bytes() == expected, "other bytes than were sent");

    // Nothing is nothing, and no piece is no end.
    assert_eq!(host.put(&host.path("import", &vdi, ""), "").status(), 200);
    let task = host.task();
    let more = format!("&chunked=true&task_id={task}");
    assert_eq!(host.put(&host.path("import", &vdi, &more), "no pieces").status(), 200);
    let record = host.ended(&task);
    let why = json!(["VDI_IO_ERROR", "the client has sent a part of the disk only"]);
    assert_eq!((&record["status"], &record["error_info"]), (&json!("failure"), &why));
    assert!(vdi.bytes() == expected, "there is more than was sent");
    assert!(
        host.web.log().contains(r#""who":"admin","from":"127.0.0.1","what":"storage vdi-pass""#)
    );
}

#[test]
fn contents_are_for_admins_who_say_so_as_xapi_is_told() {
    let host = Host::new();
    let vdi = host.vdi("disk");
    let get = |more: &str, headers: &[(&str, &str)]| {
        let path = format!("/export_raw_vdi?vdi={}{more}", vdi.reference);
        host.web.send("GET", &path, None, headers, "")
    };
    let basic = |name: &str, password: &str| {
        format!("Basic {}", Base64::encode_string(format!("{name}:{password}").as_bytes()))
    };
    let cookie = format!("a=b; session_id={}", host.session);
    let right = basic("admin", &token(Role::Admin));
    for header in [("cookie", cookie.as_str()), ("authorization", &right)] {
        let response = get("", &[header]);
        assert_eq!(response.status(), 200, "{header:?}");
        assert_eq!(all(response).len(), BYTES);
    }
    for (status, more, header) in [
        (401, "", ("x", "y")),
        (401, "&session_id=OpaqueRef:no", ("x", "y")),
        (401, "", ("authorization", &*basic("ann", "wrong"))),
        (403, "", ("authorization", &*basic("ann", PASSWORD))),
        (403, "", ("authorization", &*basic("limited-admin", &limited(Role::Admin)))),
        // A browser sends its cookies along with what any page asks for.
        (401, "", ("cookie", &*cookie)),
    ] {
        let origin = ("origin", "https://elsewhere.example");
        let headers: &[_] = if header.0 == "cookie" { &[header, origin] } else { &[header] };
        assert_eq!(get(more, headers).status(), status, "{more} {header:?}");
    }
    // An operator's task says why; a task of others is not touched.
    let ann = Client::log_in(&host.web, "ann", PASSWORD).unwrap();
    let task = ann.call("task.create", &[json!("mine"), json!("")]).unwrap();
    let others = host.task();
    for (task, failed) in [(task.as_str().unwrap(), true), (&others, false)] {
        for (method, path) in [("GET", "export"), ("PUT", "import")] {
            let path = format!(
                "/{path}_raw_vdi?vdi={}&session_id={}&task_id={task}",
                vdi.reference, ann.session
            );
            let (status, _) = said(host.web.send(method, &path, None, &[], ""));
            assert!(status == 403 || (failed && status == 400), "{status}");
        }
        let record = host.call("task.get_record", &[json!(task)]);
        assert_eq!(record["status"] == "failure", failed, "{record}");
        if failed {
            assert_eq!(record["error_info"][0], "RBAC_PERMISSION_DENIED");
            assert_eq!(record["error_info"][1], "http/get_export_raw_vdi");
        }
    }
    assert_eq!(vdi.bytes(), vec![0; BYTES]);
}

#[test]
fn what_cannot_be_passed_is_refused_by_status_and_by_task() {
    let host = Host::new();
    let vdi = host.vdi("disk");
    let none = "00000000-0000-0000-0000-000000000001";
    for (method, status, query, info) in [
        (
            "GET",
            404,
            format!("vdi={}&format=vhd", vdi.uuid),
            json!(["INTERNAL_ERROR", "the format vhd is not supported; there is raw"]),
        ),
        (
            "PUT",
            404,
            format!("vdi={}&format=qcow2", vdi.uuid),
            json!(["INTERNAL_ERROR", "the format qcow2 is not supported; there is raw"]),
        ),
        ("GET", 400, String::new(), json!(["VDI_MISSING"])),
        ("PUT", 400, "vdi=cow".to_owned(), json!(["HANDLE_INVALID", "VDI", "cow"])),
        ("GET", 400, format!("vdi={none}"), json!(["UUID_INVALID", "VDI", none])),
    ] {
        let way = if method == "GET" { "export" } else { "import" };
        let task = host.task();
        let path = format!("/{way}_raw_vdi?{query}&session_id={}&task_id={task}", host.session);
        let (got, said) = said(host.web.send(method, &path, None, &[], ""));
        assert_eq!(got, status, "{query}: {said}");
        let record = host.ended(&task);
        assert_eq!((&record["status"], &record["error_info"]), (&json!("failure"), &info));
        // A task that has ended is of no use any more.
        assert_eq!(host.web.send(method, &path, None, &[], "").status(), 400, "{query}");
    }
    let task = host.task();
    let path = host.path("import", &vdi, &format!("&task_id={task}"));
    let words = format!("PUT {path} HTTP/1.1\r\nContent-Length: {}", BYTES + 1);
    assert!(head_of(&mut host.begun(&words)).starts_with("HTTP/1.1 400"));
    assert_eq!(host.ended(&task)["error_info"][0], "VDI_IO_ERROR");
    assert_eq!(vdi.bytes(), vec![0; BYTES]);
    // What is longer, and does not say so before, fails when it is.
    let task = host.task();
    let path = host.path("import", &vdi, &format!("&task_id={task}"));
    let long = vec![1; BYTES + 1];
    let sent = host.web.agent.put(format!("{}{path}", host.web.url));
    let _cut = sent.send(SendBody::from_reader(&mut &long[..]));
    assert_eq!(host.ended(&task)["error_info"][0], "VDI_IO_ERROR");
}

#[test]
fn a_vdi_that_cannot_be_opened_is_told_of_by_status_or_by_the_task_of_a_client_that_has_one() {
    let host = Host::new();
    let vdi = host.vdi("disk");
    for name in std::fs::read_dir(host.folder.path("")).unwrap() {
        let path = name.unwrap().path();
        if path.to_str().unwrap().ends_with(":disk") {
            std::fs::remove_file(path).unwrap();
        }
    }
    for way in ["import", "export"] {
        let method = if way == "import" { "PUT" } else { "GET" };
        let (status, said) = said(host.web.send(method, &host.path(way, &vdi, ""), None, &[], "x"));
        assert_eq!(status, 500);
        assert!(
            said["detail"].as_str().unwrap().starts_with("INTERNAL_ERROR cannot open"),
            "{said}"
        );
    }
    let task = host.task();
    let path = host.path("import", &vdi, &format!("&task_id={task}"));
    assert_eq!(host.put(&path, &data()[..]).status(), 200);
    assert_eq!(host.ended(&task)["error_info"][0], "INTERNAL_ERROR");
    // One that waits for its answer first learns it from its task too, and without one its connection is cut.
    for (task, rest) in [(Some(host.task()), "0\r\n\r\n"), (None, "")] {
        let more = task.as_ref().map_or_else(String::new, |it| format!("&task_id={it}"));
        let path = host.path("import", &vdi, &more);
        let words = "Content-Length: 5\r\nConnection: close";
        let mut stream = host.begun(&format!("PUT {path} HTTP/1.1\r\n{words}"));
        assert!(head_of(&mut stream).starts_with("HTTP/1.1 200"));
        stream.write_all(b"hello").unwrap();
        let mut found = String::new();
        let _cut = stream.read_to_string(&mut found);
        assert_eq!(found, rest);
        if let Some(task) = task {
            assert_eq!(host.ended(&task)["error_info"][0], "INTERNAL_ERROR");
        }
    }
}

#[test]
fn a_client_is_answered_before_it_sends_and_may_hang_up() {
    let host = Host::new();
    let vdi = host.vdi("disk");
    // It does not know how much it will send, and hangs up in the end.
    let task = host.task();
    let path = host.path("import", &vdi, &format!("&task_id={task}"));
    let mut stream =
        host.begun(&format!("PUT {path} HTTP/1.1\r\nContent-Length: 1125899906842624"));
    assert!(head_of(&mut stream).starts_with("HTTP/1.1 200"));
    stream.write_all(&data()[..3 << 20]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while host.call("task.get_progress", &[json!(task)]).as_f64().unwrap() < 0.59 {
        assert!(Instant::now() < deadline, "there is no progress");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stream);
    let record = host.ended(&task);
    assert_eq!(record["error_info"], json!(["VDI_IO_ERROR", "the client went away"]));
    assert!(vdi.bytes()[..3 << 20] == data()[..3 << 20], "other bytes than were sent");

    // One that has sent nothing is in nobody's way, and may send later.
    let path = host.path("import", &vdi, "");
    let words = "Content-Length: 5\r\nConnection: close";
    let mut idle = host.begun(&format!("PUT {path} HTTP/1.1\r\n{words}"));
    assert!(head_of(&mut idle).starts_with("HTTP/1.1 200"));
    assert_eq!(all(host.put(&path, "other")), b"");
    assert_eq!(&vdi.bytes()[..5], b"other");
    idle.write_all(b"later").unwrap();
    let mut rest = String::new();
    idle.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), &vdi.bytes()[..5]), ("0\r\n\r\n", &b"later"[..]));

    // It waits to be told to go on.
    let words = "Content-Length: 5\r\nExpect: 100-continue\r\nConnection: close";
    let mut stream = host.begun(&format!("PUT {path} HTTP/1.1\r\n{words}"));
    assert!(head_of(&mut stream).starts_with("HTTP/1.1 100"));
    stream.write_all(b"hello").unwrap();
    assert!(head_of(&mut stream).starts_with("HTTP/1.1 200"));
    rest.clear();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), &vdi.bytes()[..5]), ("0\r\n\r\n", &b"hello"[..]));

    // Whoever has no task sees that the answer is not whole.
    let words = "Transfer-Encoding: chunked\r\nConnection: close";
    let mut stream = host.begun(&format!("PUT {path}&chunked=true HTTP/1.1\r\n{words}"));
    assert!(head_of(&mut stream).starts_with("HTTP/1.1 200"));
    stream.write_all(b"3\r\nabc\r\n0\r\n\r\n").unwrap();
    rest.clear();
    let _cut = stream.read_to_string(&mut rest);
    assert_eq!(rest, "");

    // One that is cancelled ends, and so does one that nobody takes.
    let task = host.task();
    let path = host.path("import", &vdi, &format!("&task_id={task}"));
    let mut stream = host.begun(&format!("PUT {path} HTTP/1.1\r\nContent-Length: 10"));
    assert!(head_of(&mut stream).starts_with("HTTP/1.1 200"));
    host.call("task.cancel", &[json!(task)]);
    let record = host.ended(&task);
    assert_eq!(
        (&record["status"], &record["error_info"][0]),
        (&json!("cancelled"), &json!("TASK_CANCELLED"))
    );
    vdi.file.write_all_at(&vec![1; BYTES], 0).unwrap();
    let task = host.task();
    let path = host.path("export", &vdi, &format!("&task_id={task}"));
    let mut stream = host.begun(&format!("GET {path} HTTP/1.1"));
    assert!(head_of(&mut stream).starts_with("HTTP/1.1 200"));
    drop(stream);
    let record = host.ended(&task);
    assert!(record["status"] == "failure" || record["progress"] == json!(1.0), "{record}");
}
