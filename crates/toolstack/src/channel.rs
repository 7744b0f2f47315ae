//! Connections to other hosts, over which VMs move.
//!
//! A connection is handed over by a client, outlives single works, and is closed by the machine. What is said on it is
//! `migrate::peer`'s, or xl's; a [`Conversation`] says and hears it.

use std::fmt;

use migrate::Input;
use migrate::peer::{self, Message};

use crate::work::Failure;

/// A connection that a client has handed over. Assigned by the daemon.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ChannelId(pub u64);

/// What came from the other end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    Bytes(usize),
    /// Nothing in time.
    Nothing,
    /// It has closed the connection.
    End,
}

/// A connection that has broken.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// A connection to another host.
pub trait Channel {
    /// Sends some of it, waiting for at most this long; 0 if nothing is taken in time. The next call goes on with the
    /// same bytes.
    ///
    /// # Errors
    /// The other end is gone.
    fn send(&mut self, bytes: &[u8], timeout_ns: u64) -> Result<usize, Broken>;

    /// Receives some bytes, waiting for at most this long.
    ///
    /// # Errors
    /// The connection has broken.
    fn receive(&mut self, into: &mut [u8], timeout_ns: u64) -> Result<Received, Broken>;

    /// Gives bytes back that were received and not used: they are received next.
    fn unread(&mut self, bytes: &[u8]);
}

/// Bytes that are read from a connection at once.
const READ_BYTES: usize = 256 << 10;

const SECOND: u64 = 1_000_000_000;
/// How often a wait looks whether it is cancelled.
const LOOK_NS: u64 = 50_000_000;
/// Signs of life for which a message is waited for.
const SIGNS_MAX: u32 = 10;
/// How long the other end may take nothing.
const TAKES_NOTHING_SECONDS: u64 = 60;

/// How long something that is expected may take to come, all of it: whoever sends a byte now and then does not keep
/// others waiting for ever. Counted in looks, each of which ends after [`LOOK_NS`] or with some bytes.
#[derive(Debug)]
pub(crate) struct Patience {
    looks: u64,
    seconds: u64,
}

impl Patience {
    pub(crate) fn of(seconds: u64) -> Self {
        Self { looks: seconds * SECOND / LOOK_NS, seconds }
    }
}

/// One side of what is said on a connection. What has come and was not heard yet is given back at its end.
pub(crate) struct Conversation {
    channel: Box<dyn Channel>,
    input: Input,
    bytes: Vec<u8>,
    out: Vec<u8>,
    /// Nothing more can be sent.
    has_broken: bool,
    /// A message was cut off: what came after it would not be understood.
    is_cut: bool,
    /// The other end speaks as xl does.
    is_xl: bool,
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation").field("unparsed", &self.input.unparsed()).finish()
    }
}

/// Why nothing was heard.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Silence {
    /// The other end has closed the connection, or it has broken.
    Broken(String),
    /// It says nothing.
    TooLong {
        seconds: u64,
    },
    /// It says what cannot be understood.
    Nonsense(String),
    Cancelled,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(why) => write!(f, "the connection broke: {why}"),
            Self::TooLong { seconds } => write!(f, "it has not answered for {seconds} s"),
            Self::Nonsense(why) => write!(f, "it does not keep to the protocol: {why}"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl From<Broken> for Silence {
    fn from(Broken(why): Broken) -> Self {
        Self::Broken(why)
    }
}

impl From<Silence> for Failure {
    fn from(silence: Silence) -> Self {
        Self(format!("the other host: {silence}"))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let rest = self.input.take_unparsed();
        if !rest.is_empty() {
            self.channel.unread(&rest);
        }
    }
}

impl Conversation {
    pub(crate) fn on(channel: Box<dyn Channel>) -> Self {
        let (input, bytes) = (Input::new(), vec![0; READ_BYTES]);
        Self {
            channel,
            input,
            bytes,
            out: Vec::new(),
            has_broken: false,
            is_cut: false,
            is_xl: false,
        }
    }

    pub(crate) fn say(&mut self, message: &Message) -> Result<(), Silence> {
        self.out.clear();
        message.encode(&mut self.out);
        self.transmit(&mut || false)
    }

    /// Bytes of an image, at most as many as one message has. `is_cancelled` is asked while it waits; after that nothing
    /// more can be said.
    pub(crate) fn say_data(
        &mut self,
        bytes: &[u8],
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), Silence> {
        self.out.clear();
        peer::encode_data(bytes, &mut self.out);
        self.transmit(is_cancelled)
    }

    /// What the other end said before it closed a connection that has broken.
    pub(crate) fn hear_last(&mut self, seconds: u64) -> Option<Message> {
        if !self.has_broken {
            return None;
        }
        self.hear(seconds, &mut || false).ok()
    }

    /// A further connection has broken: the other end may have said why on this one.
    pub(crate) fn lane_broke(&mut self) {
        self.has_broken = true;
    }

    fn transmit(&mut self, is_cancelled: &mut dyn FnMut() -> bool) -> Result<(), Silence> {
        if self.is_cut {
            return Err(Silence::Cancelled);
        }
        let (mut sent, mut waited) = (0, 0);
        while sent < self.out.len() {
            match self.channel.send(&self.out[sent..], LOOK_NS) {
                Ok(0) => waited += LOOK_NS,
                Ok(count) => (sent, waited) = (sent + count, 0),
                Err(broken) => {
                    self.has_broken = true;
                    return Err(broken.into());
                }
            }
            if waited >= TAKES_NOTHING_SECONDS * SECOND {
                self.has_broken = true;
                let why = format!("it has taken nothing for {TAKES_NOTHING_SECONDS} s");
                return Err(Silence::Broken(why));
            }
            if sent < self.out.len() && is_cancelled() {
                self.is_cut = true;
                return Err(Silence::Cancelled);
            }
        }
        Ok(())
    }

    /// Bytes of xl's protocol, or a banner.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Silence> {
        self.send_unless(bytes, &mut || false)
    }

    /// The same, as [`Self::say_data`].
    pub(crate) fn send_unless(
        &mut self,
        bytes: &[u8],
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), Silence> {
        self.out.clear();
        self.out.extend_from_slice(bytes);
        self.transmit(is_cancelled)
    }

    /// Whether the other end speaks as xl does.
    pub(crate) fn is_xl(&self) -> bool {
        self.is_xl
    }

    pub(crate) fn set_xl(&mut self) {
        self.is_xl = true;
    }

    /// What has come and was not used.
    pub(crate) fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    /// Takes more bytes in. Ends when some have come, or none in time. `is_cancelled` is asked while it waits.
    pub(crate) fn take_in(
        &mut self,
        patience: &mut Patience,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), Silence> {
        while patience.looks > 0 {
            patience.looks -= 1;
            match self.channel.receive(&mut self.bytes, LOOK_NS)? {
                Received::Bytes(count) => {
                    self.input.feed(&self.bytes[..count]);
                    return Ok(());
                }
                Received::Nothing => {}
                Received::End => {
                    self.input.end();
                    return Err(Silence::Broken("it has closed it".to_owned()));
                }
            }
            if is_cancelled() {
                return Err(Silence::Cancelled);
            }
        }
        Err(Silence::TooLong { seconds: patience.seconds })
    }

    /// The next message that is more than a sign of life. All of it comes within `seconds`, or of the last such sign.
    pub(crate) fn hear(
        &mut self,
        seconds: u64,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Message, Silence> {
        let (mut patience, mut signs) = (Patience::of(seconds), 0);
        loop {
            match Message::parse(&mut self.input) {
                Ok(Some(Message::Alive)) => {
                    signs += 1;
                    if signs <= SIGNS_MAX {
                        patience = Patience::of(seconds);
                    }
                }
                Ok(Some(message)) => return Ok(message),
                Ok(None) => self.take_in(&mut patience, is_cancelled)?,
                Err(error) => return Err(Silence::Nonsense(error.to_string())),
            }
        }
    }

    /// The next message if it comes within so many nanoseconds, be it a sign of life.
    pub(crate) fn hear_soon(&mut self, timeout_ns: u64) -> Result<Option<Message>, Silence> {
        let parse = |input: &mut Input| {
            Message::parse(input).map_err(|error| Silence::Nonsense(error.to_string()))
        };
        if let Some(message) = parse(&mut self.input)? {
            return Ok(Some(message));
        }
        match self.channel.receive(&mut self.bytes, timeout_ns)? {
            Received::Bytes(count) => self.input.feed(&self.bytes[..count]),
            Received::Nothing => return Ok(None),
            Received::End => {
                self.input.end();
                return Err(Silence::Broken("it has closed it".to_owned()));
            }
        }
        parse(&mut self.input)
    }

    /// Exactly these bytes, as xl says things.
    pub(crate) fn hear_exactly(
        &mut self,
        expected: &[u8],
        seconds: u64,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), Silence> {
        let come = self.hear_bytes(expected.len(), seconds, is_cancelled)?;
        if come == expected {
            return Ok(());
        }
        let [come, expected] =
            [&*come, expected].map(|it| String::from_utf8_lossy(it).into_owned());
        let (come, expected) = (come.escape_debug(), expected.escape_debug());
        Err(Silence::Nonsense(format!("\"{come}\" came, expected \"{expected}\"")))
    }

    /// As many bytes as this.
    pub(crate) fn hear_bytes(
        &mut self,
        count: usize,
        seconds: u64,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, Silence> {
        let mut patience = Patience::of(seconds);
        while self.input.unparsed() < count {
            self.take_in(&mut patience, is_cancelled)?;
        }
        Ok(self.input.take(count))
    }

    /// The first line, of at most `bytes_max`, newline included.
    pub(crate) fn hear_line(
        &mut self,
        bytes_max: usize,
        seconds: u64,
        is_cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, Silence> {
        let mut patience = Patience::of(seconds);
        loop {
            let come = self.input.unparsed_bytes();
            match come.iter().position(|byte| *byte == b'\n') {
                Some(at) if at < bytes_max => return Ok(self.input.take(at + 1)),
                None if come.len() < bytes_max => self.take_in(&mut patience, is_cancelled)?,
                _ => {
                    let start = come[..come.len().min(bytes_max)].escape_ascii().to_string();
                    return Err(Silence::Nonsense(format!("it began with \"{start}\"")));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another end that always has something to say, some bytes in each look.
    struct Drip {
        says: Vec<u8>,
        at: usize,
        bytes: usize,
        looks: std::rc::Rc<std::cell::Cell<u64>>,
    }

    impl Channel for Drip {
        fn send(&mut self, bytes: &[u8], _: u64) -> Result<usize, Broken> {
            Ok(bytes.len())
        }

        fn receive(&mut self, into: &mut [u8], _: u64) -> Result<Received, Broken> {
            self.looks.set(self.looks.get() + 1);
            let count = self.bytes.min(into.len());
            for byte in &mut into[..count] {
                *byte = self.says[self.at % self.says.len()];
                self.at += 1;
            }
            Ok(Received::Bytes(count))
        }

        fn unread(&mut self, _: &[u8]) {}
    }

    fn drip(says: &Message, bytes: usize) -> (Conversation, std::rc::Rc<std::cell::Cell<u64>>) {
        let looks = std::rc::Rc::default();
        let mut said = Vec::new();
        says.encode(&mut said);
        let drip = Drip { says: said, at: 0, bytes, looks: std::rc::Rc::clone(&looks) };
        (Conversation::on(Box::new(drip)), looks)
    }

    fn seconds(looks: &std::cell::Cell<u64>) -> u64 {
        looks.get() * LOOK_NS / SECOND
    }

    #[test]
    fn a_byte_now_and_then_keeps_nobody_waiting() {
        let why = "x".repeat(4000);
        let (mut with, looks) = drip(&Message::Failed { why: why.clone() }, 1);
        let never = &mut || false;
        assert_eq!(with.hear(60, never), Err(Silence::TooLong { seconds: 60 }));
        assert_eq!(seconds(&looks), 60);
        let (mut with, looks) = drip(&Message::Failed { why }, 1);
        assert_eq!(with.hear_line(4096, 60, never), Err(Silence::TooLong { seconds: 60 }));
        assert_eq!(seconds(&looks), 60);
        assert_eq!(with.hear_bytes(4096, 60, never), Err(Silence::TooLong { seconds: 60 }));
        assert_eq!(seconds(&looks), 120);
    }

    #[test]
    fn what_comes_in_small_pieces_is_heard() {
        let offer = peer::Offer { config: "x".repeat(200_000), ..peer::Offer::default() };
        let offer = Message::Offer(Box::new(offer));
        let (mut with, _) = drip(&offer, 500);
        assert_eq!(with.hear(60, &mut || false), Ok(offer));
    }

    #[test]
    fn signs_of_life_are_waited_for_and_not_for_ever() {
        let (mut with, looks) = drip(&Message::Alive, 1);
        assert_eq!(with.hear(60, &mut || false), Err(Silence::TooLong { seconds: 60 }));
        assert!((60..=120).contains(&seconds(&looks)), "{} s", seconds(&looks));
    }
}
