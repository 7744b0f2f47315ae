//! What a client's thread hears of its request, from the threads that work on it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use service::{Door, Gone, News, Progress};
use toolstack::Reply;

/// A message to a client.
pub enum Answered {
    News(News),
    Reply(Reply),
}

/// A client that waits for the reply to its request.
pub struct Waiting {
    pub answers: Sender<Answered>,
    pub progress: Progress,
}

impl Waiting {
    pub fn tell(&self, news: News) {
        if self.progress == Progress::Wanted || !matches!(news, News::Progress(_)) {
            // A client that has hung up no longer wants to know.
            let _gone = self.answers.send(Answered::News(news));
        }
    }

    pub fn reply(self, reply: Reply) {
        let _gone = self.answers.send(Answered::Reply(reply));
    }
}

/// Waits for the reply; `hear` is told what comes before, and may give up.
///
/// # Errors
/// [`Gone`] if `hear` says so, or nobody answers any more.
pub fn reply(
    answered: &Receiver<Answered>,
    hear: &mut dyn FnMut(News) -> Result<(), Gone>,
) -> Result<Reply, Gone> {
    loop {
        match answered.recv().map_err(|_| Gone)? {
            Answered::News(news) => hear(news)?,
            Answered::Reply(reply) => return Ok(reply),
        }
    }
}

/// As [`reply`], only as long as the client is there, which is looked at so often, and for `patience` at most, after which
/// there is no reply.
///
/// # Errors
/// As for [`reply`], or if the client is gone.
pub fn reply_in_time(
    answered: &Receiver<Answered>,
    (look_every, patience): (Duration, Option<Duration>),
    door: &dyn Door,
    hear: &mut dyn FnMut(News) -> Result<(), Gone>,
) -> Result<Option<Reply>, Gone> {
    let deadline = patience.map(|patience| Instant::now() + patience);
    loop {
        let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
        match answered.recv_timeout(left.map_or(look_every, |it| it.min(look_every))) {
            Ok(Answered::Reply(reply)) => return Ok(Some(reply)),
            Ok(Answered::News(news)) => hear(news)?,
            Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            Err(RecvTimeoutError::Timeout) if left.is_some_and(|it| it.is_zero()) => {
                return Ok(None);
            }
            Err(RecvTimeoutError::Timeout) if door.has_gone() => return Err(Gone),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
