//! Screens of another host.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};

use crate::daemon::Scratch;
use crate::remote::{Remote, told};

/// A host on which web-0 has a screen, and the server of it.
fn host() -> (Remote, TcpListener) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let remote = Remote::of(|daemon| daemon.with_screen(address));
    let domid = remote.run(&["domid", "web-0"]).1;
    let node = |name: &str| format!("/local/domain/{}/console/{name}", domid.trim());
    let (listen, port) = (node("vnc-listen"), node("vnc-port"));
    assert_eq!(remote.run(&["store", "write", &listen, "127.0.0.1", &port, "5901"]).0, 0);
    (remote, server)
}

/// Both ways, until the viewer leaves.
fn look(server: &TcpListener, viewer: &mut TcpStream) {
    let (mut screen, _) = server.accept().unwrap();
    screen.write_all(b"RFB 003.008\n").unwrap();
    let mut said = [0; 12];
    viewer.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"RFB 003.008\n");
    let many = vec![7; 300_000];
    viewer.write_all(&many[..100_000]).unwrap();
    let mut come = vec![0; 100_000];
    screen.read_exact(&mut come).unwrap();
    let sender = std::thread::spawn(move || screen.write_all(&many).map(|()| screen));
    let mut come = vec![0; 300_000];
    viewer.read_exact(&mut come).unwrap();
    assert_eq!(come, vec![7; 300_000]);
    let mut screen = sender.join().unwrap().unwrap();
    viewer.shutdown(std::net::Shutdown::Both).unwrap();
    let mut rest = Vec::new();
    let _reset = screen.read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    while !line.ends_with('\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        line.push(char::from(byte[0]));
    }
    line
}

#[test]
fn a_viewer_here_shows_a_screen_there() {
    let (remote, server) = host();
    let mut command = remote.command(&["vncviewer", "-p", "web-0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let place = first_line(&mut child).trim().replace("::", ":");
    look(&server, &mut TcpStream::connect(place).unwrap());
    let (status, _, error) = told(&child.wait_with_output().unwrap());
    assert_eq!((status, error.as_str()), (0, ""));
}

#[test]
fn a_viewer_is_started_and_waited_for() {
    let (remote, server) = host();
    // A viewer that only says where it was to look, and one that does not connect.
    let folder = Scratch::new();
    let viewer = folder.path.join("vncviewer");
    std::fs::write(&viewer, format!("#!/bin/sh\necho \"$1\" >{}/place\n", folder.path.display()))
        .unwrap();
    std::fs::set_permissions(&viewer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = remote.command(&["vncviewer", "web-0"]);
    let (status, _, error) = told(&command.env("PATH", &folder.path).output().unwrap());
    assert_eq!((status, error.as_str()), (0, ""));
    let place = std::fs::read_to_string(folder.path.join("place")).unwrap();
    assert!(place.starts_with("127.0.0.1::"), "{place}");
    drop(server);
    let mut command = remote.command(&["vncviewer", "web-0"]);
    let (status, _, error) = told(&command.env("PATH", "/nowhere").output().unwrap());
    assert_eq!(status, 1);
    assert!(error.contains("cannot reach the screen of domain"), "{error}");
    let (status, _, error) = remote.run(&["vncviewer", "db-1"]);
    assert_eq!(status, 1);
    assert!(error.contains("screen"), "{error}");
}

#[test]
fn a_vm_is_made_there_and_a_viewer_here() {
    let (remote, _server) = host();
    let folder = Scratch::new();
    let config = folder.path.join("new.cfg");
    std::fs::write(&config, "name = 'new'\nkernel = '/boot/vmlinuz'\nmemory = 8\n").unwrap();
    let (status, _, error) = remote.run(&["create", "-q", "-V", config.to_str().unwrap()]);
    // It has none, and runs all the same.
    assert_eq!(status, 0, "{error}");
    assert!(error.contains("screen"), "{error}");
    assert_eq!(remote.run(&["domid", "new"]).0, 0);
}
