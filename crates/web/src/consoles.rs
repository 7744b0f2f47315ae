//! Consoles and screens by WebSocket: bytes between a client and the daemon's relay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Request;
use axum::body::Bytes;
use axum::extract::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use text_screen::TextScreen;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{interval, timeout};

use crate::problem::Problem;
use crate::routes::subject;
use crate::running::Asks;
use crate::shared::{LOOKS_EVERY, Shared};

/// What noVNC and others offer, for what is no subprotocol.
const SUBPROTOCOL: &str = "binary";
/// Of what comes from a client at once: a large text that is pasted.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
const READ_BYTES: usize = 16 << 10;
const PING_EVERY: Duration = Duration::from_secs(20);
/// A client that says nothing for this time, and answers no ping, is gone. A guest that takes nothing for this time is not waited
/// for, either.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// For a client to take its leave.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Who looks at a console.
pub(crate) struct Viewer {
    pub(crate) asks: Asks,
    pub(crate) is_let_in: Box<dyn Fn() -> bool + Send + Sync>,
}

pub(crate) fn upgrade_of(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<WebSocketUpgrade, Problem> {
    upgrade.map_err(|_| {
        Problem::new(
            StatusCode::UPGRADE_REQUIRED,
            "this is a WebSocket: ask for the upgrade to one",
        )
    })
}

/// How a client is to see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Look {
    /// Byte by byte.
    Plain,
    /// A text console, as a screen.
    Drawn,
}

/// Opens a console or a screen, and hands it to the client. What it cannot be opened for is an answer as to other requests.
pub(crate) async fn attach(
    shared: &Arc<Shared>,
    viewer: Viewer,
    request: Request,
    look: Look,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Problem> {
    let (what, of) = (api::name_of(&request), subject(&request));
    let Viewer { asks, is_let_in } = viewer;
    let for_notes = Arc::clone(shared);
    let role = asks.role;
    let who = asks.who.clone();
    let note = move |result: &str| {
        for_notes.audit.note(&asks.who, &asks.from, &what, &of, result);
    };
    if let Some(why) = role.refusal(&request) {
        note(&why);
        return Err(Problem::forbidden(why));
    }
    let seat = shared.consoles.take(&who)?;
    let opened = shared.daemon.relay(&request, role).await;
    note(&opened.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned()));
    let console = opened?;
    let began = Instant::now();
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX);
    let console = match look {
        Look::Plain => console,
        Look::Drawn => drawn(console)?,
    };
    Ok(upgrade.on_upgrade(move |socket| async move {
        let why = relay(socket, console, &*is_let_in).await;
        note(&format!("closed after {} s: {why}", began.elapsed().as_secs()));
        drop(seat);
    }))
}

/// The other end of a screen on which a text console is drawn until either side hangs up.
fn drawn(console: UnixStream) -> Result<UnixStream, Problem> {
    let (ours, theirs) = UnixStream::pair()
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    tokio::spawn(async move { draw(console, ours).await });
    Ok(theirs)
}

async fn draw(mut guest: UnixStream, mut viewer: UnixStream) -> std::io::Result<()> {
    let mut screen = TextScreen::new();
    let (mut from_guest, mut from_viewer) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    viewer.write_all(screen.greeting()).await?;
    loop {
        let said = tokio::select! {
            read = guest.read(&mut from_guest) => match read? {
                0 => return Ok(()),
                count => screen.guest_says(&from_guest[..count]),
            },
            read = viewer.read(&mut from_viewer) => match read? {
                0 => return Ok(()),
                count => match screen.viewer_says(&from_viewer[..count]) {
                    Ok(said) => said,
                    Err(_) => return Ok(()),
                },
            },
        };
        // Neither is read on before both have taken that, so that nothing is kept of what comes.
        let told = async {
            guest.write_all(&said.to_guest).await?;
            viewer.write_all(&said.to_viewer).await
        };
        timeout(SILENCE_MAX, told).await??;
    }
}

/// Until either side ends; says why.
async fn relay(
    socket: WebSocket,
    console: UnixStream,
    is_let_in: &(dyn Fn() -> bool + Send + Sync),
) -> &'static str {
    let (mut to_client, mut from_client) = socket.split();
    let (from_guest, to_guest) = console.into_split();
    let why = tokio::select! {
        why = show(&mut to_client, from_guest, is_let_in) => why,
        why = hear(&mut from_client, to_guest, SILENCE_MAX) => why,
    };
    let frame = CloseFrame { code: close_code::NORMAL, reason: why.into() };
    let leave = async {
        let _gone = to_client.send(Message::Close(Some(frame))).await;
        // What it is still saying is taken, so that the connection is not reset before it has heard all.
        while let Some(Ok(_)) = from_client.next().await {}
    };
    let _late = timeout(LAST_WAIT, leave).await;
    why
}

/// Guest to client.
async fn show(
    client: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
    mut guest: impl AsyncRead + Unpin,
    is_let_in: &(dyn Fn() -> bool + Send + Sync),
) -> &'static str {
    let mut bytes = vec![0; READ_BYTES];
    let (mut pings, mut looks) = (interval(PING_EVERY), interval(LOOKS_EVERY));
    loop {
        let message = tokio::select! {
            read = guest.read(&mut bytes) => match read {
                Ok(0) | Err(_) => return "the host has closed it",
                Ok(count) => Message::Binary(Bytes::copy_from_slice(&bytes[..count])),
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
            _ = looks.tick() => {
                if !is_let_in() {
                    return "you are not let in any more";
                }
                continue;
            }
        };
        if client.send(message).await.is_err() {
            return "the client is gone";
        }
    }
}

/// Client to guest.
async fn hear(
    client: &mut (impl Stream<Item = Result<Message, axum::Error>> + Unpin),
    mut guest: impl AsyncWrite + Unpin,
    silence_max: Duration,
) -> &'static str {
    loop {
        let bytes = match timeout(silence_max, client.next()).await {
            Err(_) => return "the client says nothing, and answers no ping",
            Ok(None | Some(Err(_))) => return "the client is gone",
            Ok(Some(Ok(Message::Close(_)))) => return "the client has left",
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
            Ok(Some(Ok(Message::Binary(bytes)))) => bytes,
            Ok(Some(Ok(Message::Text(text)))) => text.into(),
        };
        // A guest that has ended may have said something that is still on its way to the client.
        if timeout(silence_max, guest.write_all(&bytes)).await.is_err() {
            return "the guest takes nothing";
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn run<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
    }

    #[test]
    fn a_client_that_is_silent_and_a_guest_that_is_deaf_are_not_waited_for() {
        run(async {
            let why = hear(&mut stream::pending(), tokio::io::sink(), SHORT).await;
            assert_eq!(why, "the client says nothing, and answers no ping");
            let (guest, _deaf) = tokio::io::duplex(4);
            let mut says = stream::iter([Ok(Message::Text("hello".into()))]);
            assert_eq!(hear(&mut says, guest, SHORT).await, "the guest takes nothing");
        });
    }

    #[test]
    fn all_messages_are_bytes_and_pongs_are_signs_of_life() {
        run(async {
            let (guest, mut told) = tokio::io::duplex(64);
            let messages = [
                Message::Text("ab".into()),
                Message::Pong(Bytes::new()),
                Message::Binary(Bytes::from_static(&[0, 255])),
                Message::Close(None),
                Message::Text("not heard".into()),
            ];
            let why = hear(&mut stream::iter(messages.map(Ok)), guest, SHORT).await;
            assert_eq!(why, "the client has left");
            let mut bytes = Vec::new();
            told.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, [b'a', b'b', 0, 255]);
        });
    }
}
