//! How fast a link is: MiB a second over loopback, plain TCP first, then one link, then several at a time.
//!
//! `cargo run --release -p peer-link --example throughput [MIB]`

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use peer_link::listen::{Call, Gate, Limits, listen};
use peer_link::peers::PeersError;
use peer_link::{Come, Identity, Link, Peer, Peers, Service, dial};

const MIB: usize = 1 << 20;

struct Door {
    peers: PathBuf,
    calls: Mutex<Sender<Call>>,
}

impl Gate for Door {
    fn peers(&self) -> Result<Peers, PeersError> {
        Peers::load(&self.peers)
    }

    fn release(&self) -> String {
        "0".to_owned()
    }

    fn serve(&self, call: Call) {
        self.calls.lock().expect("no panics").send(call).expect("main waits");
    }

    fn log(&self, line: &str) {
        eprintln!("{line}");
    }
}

fn rate(mib: usize, started: Instant) -> u128 {
    u128::try_from(mib).expect("small") * 1000 / started.elapsed().as_millis().max(1)
}

fn plain(mib: usize) -> Result<u128, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let taker = thread::spawn(move || {
        let (mut socket, _) = listener.accept()?;
        let mut bytes = vec![0; MIB];
        while socket.read(&mut bytes)? > 0 {}
        Ok::<(), std::io::Error>(())
    });
    let started = Instant::now();
    let mut socket = TcpStream::connect(address)?;
    let bytes = vec![7; MIB];
    for _ in 0..mib {
        socket.write_all(&bytes)?;
    }
    drop(socket);
    taker.join().expect("no panic")?;
    Ok(rate(mib, started))
}

fn take(mut link: Link) {
    let mut bytes = vec![0; MIB];
    while let Ok(Come::Bytes(_)) = link.receive(&mut bytes, Duration::from_secs(10)) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(2048), |word| word.parse())?;
    let folder = std::env::temp_dir().join(format!("throughput-{}", std::process::id()));
    let identity = Identity::load_or_make(&folder.join("key"))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let peer = Peer::parse("itself", &address, &identity.fingerprint().to_string())?;
    Peers::add(&folder.join("peers"), peer.clone())?;
    let (sender, calls) = channel();
    let gate = Door { peers: folder.join("peers"), calls: Mutex::new(sender) };
    listen(listener, identity.clone(), Limits::default(), Arc::new(gate))?;
    println!("plain TCP: {} MiB/s", plain(mib)?);
    for lanes in [1, 2, 4] {
        let mut ends = Vec::new();
        for _ in 0..lanes {
            let (link, call) = thread::scope(|scope| {
                let caller = scope.spawn(|| dial(&identity, &peer, &Service::Receive));
                let accepted = calls.recv().map(Call::accept);
                (caller.join().expect("no panic"), accepted)
            });
            ends.push((link?.0, call??));
        }
        let started = Instant::now();
        let threads: Vec<_> = ends
            .into_iter()
            .flat_map(|(mut link, other)| {
                let bytes = vec![7; MIB];
                let giver = thread::spawn(move || {
                    for _ in 0..mib / lanes {
                        link.send(&bytes).expect("the other end takes it");
                    }
                });
                [giver, thread::spawn(move || take(other))]
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        println!("{lanes} link(s): {} MiB/s", rate(mib, started));
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
