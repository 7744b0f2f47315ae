//! Connections: how many, from where, and for how long.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::admit::Peer;
use crate::shared::lock;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 4096;
/// From one address.
const OF_AN_ADDRESS_MAX: usize = 1024;
/// For TLS to be agreed on, and for the head of a request to come.
const HEAD_WAIT: Duration = Duration::from_secs(10);
/// A client that reads nothing, or does not go on with what it sends, for this time is gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Of the head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Open connections by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

struct Place {
    open: Open,
    address: IpAddr,
}

impl Open {
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).values().sum()
    }

    fn take(&self, address: IpAddr) -> Option<Place> {
        let mut all = lock(&self.0);
        let total: usize = all.values().sum();
        let count = all.get(&address).copied().unwrap_or_default();
        if total >= CONNECTIONS_MAX || count >= OF_AN_ADDRESS_MAX {
            return None;
        }
        all.insert(address, count + 1);
        Some(Place { open: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(&self.open.0);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

/// Of what goes on when told to stop.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Serves clients until told to stop, and then those that are here, for a short time.
pub(crate) async fn serve(
    listener: TcpListener,
    open: Open,
    tls: Option<TlsAcceptor>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let (here, mut gone) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        let Ok((stream, from)) = accepted else {
            // Out of descriptors: wait for a client to go.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(place) = open.take(from.ip()) else { continue };
        let (tls, router, stop, here) = (tls.clone(), router.clone(), stop.clone(), here.clone());
        tokio::spawn(async move {
            welcome(stream, from.ip().to_canonical(), tls, router, stop).await;
            drop((place, here));
        });
    }
    drop((listener, here));
    let _late = timeout(STOP_MAX, gone.recv()).await;
}

async fn welcome(
    stream: TcpStream,
    address: IpAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: watch::Receiver<bool>,
) {
    let _slower = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(SILENCE_MAX));
    let stream = Box::pin(stream);
    match tls {
        None => converse(stream, Peer { address, certificate: None }, router, stop).await,
        Some(tls) => {
            let Ok(Ok(stream)) = timeout(HEAD_WAIT, tls.accept(stream)).await else { return };
            let chain = stream.get_ref().1.peer_certificates();
            let certificate = chain.and_then(|it| it.first()).map(|it| Arc::from(it.as_ref()));
            converse(stream, Peer { address, certificate }, router, stop).await;
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: Peer,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.map(axum::body::Body::new)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // How it ended is the client's business.
        _ended = connection.as_mut() => {}
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            let _late = timeout(STOP_MAX, connection).await;
        }
    }
}
