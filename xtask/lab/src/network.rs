//! The virtual network between the hosts of a pair: a switch in this process, with a link that can be made worse.
//!
//! ```text
//!  card of a --reader--> line (conditions, queue) --writer--> card of b
//!            <--writer-- line (conditions, queue) <--reader--
//!                    \________ observer (undisturbed) ________/
//! ```
//! Each card is one end of a socket pair that QEMU inherits; every frame on it has its length in front, four bytes,
//! the highest first (QEMU's `-netdev stream`). Nothing of it can be reached from outside.

mod line;
mod observer;

use std::fmt;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use line::Line;
use observer::Observer;

/// The longest frame that QEMU sends: 64 KiB and its headers.
const FRAME_BYTES_MAX: u32 = 68 << 10;

/// Frames under way in one direction. A sender waits when there are more.
const QUEUE_FRAMES: usize = 4096;

/// How often the observer asks, unless it is told.
const OBSERVATION_INTERVAL: Duration = Duration::from_millis(20);

/// One of the two hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl std::str::FromStr for Side {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => bail!("there is no host '{name}'; there are a and b"),
        }
    }
}

/// A network of two hosts.
#[derive(Clone, Default)]
pub(crate) struct Network(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Our ends of the hosts' cards, to write to.
    cards: [Mutex<Option<UnixStream>>; 2],
    /// What becomes of the frames from each side.
    lines: [Mutex<Line>; 2],
    observer: Mutex<Option<Observer>>,
}

impl Network {
    /// A card for a host, in place of the one that it may have had: the end that QEMU gets.
    ///
    /// # Errors
    /// There are no more sockets.
    pub(crate) fn plug(&self, side: Side) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair().context("no socket for a network card")?;
        let reader = ours.try_clone().context("no socket for a network card")?;
        *lock(&self.0.cards[side.index()]) = Some(ours);
        let (sender, receiver) = sync_channel(QUEUE_FRAMES);
        let network = self.clone();
        std::thread::spawn(move || network.take_from(side, reader, &sender));
        let network = self.clone();
        std::thread::spawn(move || network.give_to(side.other(), &receiver));
        Ok(theirs)
    }

    /// Does what a scenario says about the link, and answers.
    ///
    /// # Errors
    /// The words make no sense.
    pub(crate) fn obey(&self, words: &[&str]) -> Result<String> {
        let (words, sides) = match words {
            [words @ .., "from", side] => (words, vec![side.parse()?]),
            words => (words, Side::BOTH.to_vec()),
        };
        let change = |change: &dyn Fn(&mut Line)| {
            for side in &sides {
                change(&mut lock(&self.0.lines[side.index()]));
            }
            Ok(String::new())
        };
        match words {
            ["cut"] => change(&|line| line.is_cut = true),
            ["restore"] => change(&Line::restore),
            ["delay", milliseconds] => {
                let delay = Duration::from_millis(number(milliseconds)?.into());
                change(&|line| line.delay = delay)
            }
            ["throttle", kilobytes] => {
                let rate = u64::from(number(kilobytes)?) * 1000;
                ensure!(rate > 0, "a link of no bytes in a second is cut");
                change(&|line| line.bytes_per_second = Some(rate))
            }
            ["loss", percent] => {
                let percent = number(percent)?;
                ensure!(percent <= 100, "no more than 100 of 100 frames can be lost");
                change(&|line| line.loss_percent = percent)
            }
            ["bytes"] => Ok(Side::BOTH
                .map(|side| lock(&self.0.lines[side.index()]).bytes.to_string())
                .join(" ")),
            ["observe", address] => self.observe(address, OBSERVATION_INTERVAL),
            ["observe", address, milliseconds] => {
                self.observe(address, Duration::from_millis(number(milliseconds)?.max(1).into()))
            }
            ["observed"] => match &mut *lock(&self.0.observer) {
                Some(observer) => Ok(observer.report(Instant::now())),
                None => bail!("nothing is observed"),
            },
            _ => bail!("the link knows no '{}'", words.join(" ")),
        }
    }

    /// Frames from a card, each put on the line with the time at which it arrives at the other end.
    fn take_from(&self, side: Side, card: UnixStream, queue: &SyncSender<(Instant, Vec<u8>)>) {
        let mut card = BufReader::with_capacity(FRAME_BYTES_MAX as usize, card);
        // A machine that has ended has hung up.
        while let Ok(frame) = read_frame(&mut card) {
            self.show(&frame);
            let due = lock(&self.0.lines[side.index()]).accept(frame.len(), Instant::now());
            if let Some(due) = due
                && queue.send((due, frame)).is_err()
            {
                return;
            }
        }
    }

    fn give_to(&self, side: Side, queue: &Receiver<(Instant, Vec<u8>)>) {
        while let Ok((due, frame)) = queue.recv() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // One that was cut meanwhile loses what was under way.
            if !lock(&self.0.lines[side.other().index()]).is_cut {
                self.write(side, &frame);
            }
        }
    }

    fn write(&self, side: Side, frame: &[u8]) {
        let length = u32::try_from(frame.len()).unwrap_or(FRAME_BYTES_MAX);
        let mut message = length.to_be_bytes().to_vec();
        message.extend_from_slice(frame);
        if let Some(card) = &mut *lock(&self.0.cards[side.index()]) {
            // A host without power receives nothing.
            let _ = card.write_all(&message);
        }
    }

    /// Asks a guest for a sign of life at an interval, wherever it is, until something else is observed.
    fn observe(&self, address: &str, interval: Duration) -> Result<String> {
        let address = address.parse().with_context(|| format!("'{address}' is no address"))?;
        let begun = Instant::now();
        *lock(&self.0.observer) = Some(Observer::new(address, begun));
        let network = self.clone();
        std::thread::spawn(move || {
            let mut due = begun;
            while let Some(frame) = network.question(begun) {
                for side in Side::BOTH {
                    network.write(side, &frame);
                }
                due = (due + interval).max(Instant::now());
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Ok(String::new())
    }

    /// The observer's next frame, as long as it is the one that began then.
    fn question(&self, begun: Instant) -> Option<Vec<u8>> {
        let mut observer = lock(&self.0.observer);
        observer.as_mut().filter(|it| it.begun == begun).map(Observer::question)
    }

    fn show(&self, frame: &[u8]) {
        let answer = match &mut *lock(&self.0.observer) {
            Some(observer) => observer.see(frame, Instant::now()),
            None => None,
        };
        if let Some(frame) = answer {
            for side in Side::BOTH {
                self.write(side, &frame);
            }
        }
    }
}

fn read_frame(card: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    card.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    ensure!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    let mut frame = vec![0; length as usize];
    card.read_exact(&mut frame)?;
    Ok(frame)
}

fn number(word: &str) -> Result<u32> {
    word.parse().with_context(|| format!("'{word}' is no number"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(card: &mut UnixStream, frame: &[u8]) {
        card.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
        card.write_all(frame).unwrap();
    }

    #[test]
    fn what_one_host_sends_the_other_receives_unless_the_link_is_cut() {
        let network = Network::default();
        let mut a = network.plug(Side::A).unwrap();
        let mut b = network.plug(Side::B).unwrap();
        send(&mut a, b"one");
        assert_eq!(read_frame(&mut b).unwrap(), b"one");
        network.obey(&["cut", "from", "a"]).unwrap();
        send(&mut a, b"lost");
        send(&mut b, b"two");
        assert_eq!(read_frame(&mut a).unwrap(), b"two");
        // The other direction may be slower: only what it has counted has been lost for certain.
        while network.obey(&["bytes"]).unwrap() != "7 3" {
            std::thread::yield_now();
        }
        network.obey(&["restore"]).unwrap();
        send(&mut a, b"three");
        assert_eq!(read_frame(&mut b).unwrap(), b"three");
    }

    #[test]
    fn a_host_that_is_switched_on_again_gets_a_new_card() {
        let network = Network::default();
        let mut a = network.plug(Side::A).unwrap();
        drop(network.plug(Side::B).unwrap());
        send(&mut a, b"nobody hears this");
        while network.obey(&["bytes"]).unwrap() != "17 0" {
            std::thread::yield_now();
        }
        let mut b = network.plug(Side::B).unwrap();
        send(&mut a, b"again");
        while read_frame(&mut b).unwrap() != b"again" {}
    }

    #[test]
    fn words_that_make_no_sense_are_refused() {
        let network = Network::default();
        for words in [
            &["saw"][..],
            &["delay"],
            &["delay", "long"],
            &["throttle", "0"],
            &["loss", "101"],
            &["cut", "from", "c"],
        ] {
            assert!(network.obey(words).is_err(), "{words:?}");
        }
    }
}
