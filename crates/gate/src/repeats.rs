//! Requests that carry a key of the client's (`Idempotency-Key`): one that is sent again, since its answer was lost, is
//! answered as the first time and not done again.

use std::collections::BTreeMap;

/// Answers are kept for this time, in seconds.
const KEPT_S: u64 = 24 * 60 * 60;
/// Requests that are remembered, of one client and of all.
const OF_A_CLIENT_MAX: usize = 256;
const ALL_MAX: usize = 4096;
/// A larger answer is not kept: the request is told to have been done.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// An answer that was given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    pub status: u16,
    pub body: String,
}

/// What is known of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Repeat {
    /// Nothing: it is to be done, and remembered from now on.
    New,
    /// It is being done.
    UnderWay,
    Answered(Stored),
    /// It has been used for another request.
    OtherRequest,
    /// The client has too many that are being done.
    TooMany,
}

#[derive(Clone, Debug)]
struct Known {
    /// A fingerprint of what was asked for.
    request: u64,
    began_s: u64,
    answer: Option<Stored>,
}

/// Requests by client and key.
#[derive(Debug, Default)]
pub struct Repeats(BTreeMap<(String, String), Known>);

impl Repeats {
    /// A client sends a request with a key.
    pub fn begin(&mut self, client: &str, key: &str, request: u64, now_s: u64) -> Repeat {
        let place = (client.to_owned(), key.to_owned());
        if let Some(known) = self.0.get(&place).filter(|it| now_s < it.began_s + KEPT_S) {
            return match &known.answer {
                _ if known.request != request => Repeat::OtherRequest,
                Some(answer) => Repeat::Answered(answer.clone()),
                None => Repeat::UnderWay,
            };
        }
        self.0.retain(|_, it| now_s < it.began_s + KEPT_S);
        let of_client = self.0.keys().filter(|(name, _)| name == client).count();
        let has_room = (of_client < OF_A_CLIENT_MAX || self.forget(|name| name == client))
            && (self.0.len() < ALL_MAX || self.forget(|_| true));
        if !has_room {
            return Repeat::TooMany;
        }
        self.0.insert(place, Known { request, began_s: now_s, answer: None });
        Repeat::New
    }

    /// Forgets the oldest that has been answered.
    fn forget(&mut self, of: impl Fn(&str) -> bool) -> bool {
        let answered = self.0.iter().filter(|((name, _), it)| of(name) && it.answer.is_some());
        let oldest = answered.min_by_key(|(_, it)| it.began_s).map(|(place, _)| place.clone());
        oldest.is_some_and(|place| self.0.remove(&place).is_some())
    }

    /// It has been answered. One whose answer is not worth keeping, since nothing was done, may be sent again.
    pub fn end(&mut self, client: &str, key: &str, answer: Option<Stored>) {
        let place = (client.to_owned(), key.to_owned());
        match answer {
            Some(answer) if answer.body.len() <= ANSWER_BYTES_MAX => {
                if let Some(known) = self.0.get_mut(&place) {
                    known.answer = Some(answer);
                }
            }
            Some(Stored { status, .. }) => {
                if let Some(known) = self.0.get_mut(&place) {
                    known.answer = Some(Stored { status, body: "{}".to_owned() });
                }
            }
            None => drop(self.0.remove(&place)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Stored {
        Stored { status: 200, body: body.to_owned() }
    }

    #[test]
    fn a_request_that_is_sent_again_is_not_done_again() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.begin("a", "k", 1, 0), Repeat::New);
        assert_eq!(repeats.begin("a", "k", 1, 1), Repeat::UnderWay);
        assert_eq!(repeats.begin("b", "k", 1, 1), Repeat::New, "keys are a client's own");
        repeats.end("a", "k", Some(answer("x")));
        assert_eq!(repeats.begin("a", "k", 1, 2), Repeat::Answered(answer("x")));
        assert_eq!(repeats.begin("a", "k", 2, 2), Repeat::OtherRequest);
        repeats.end("b", "k", None);
        assert_eq!(repeats.begin("b", "k", 1, 2), Repeat::New);
        assert_eq!(repeats.begin("a", "k", 2, KEPT_S), Repeat::New);
        repeats.end("a", "k", Some(answer(&"x".repeat(ANSWER_BYTES_MAX + 1))));
        assert_eq!(repeats.begin("a", "k", 2, KEPT_S), Repeat::Answered(answer("{}")));
    }

    #[test]
    fn a_client_is_remembered_so_far_and_takes_nothing_of_others() {
        let mut repeats = Repeats::default();
        repeats.begin("b", "k", 0, 0);
        repeats.end("b", "k", Some(answer("")));
        for at in 0..OF_A_CLIENT_MAX as u64 {
            assert_eq!(repeats.begin("a", &at.to_string(), 0, at), Repeat::New);
        }
        assert_eq!(repeats.begin("a", "more", 0, 300), Repeat::TooMany);
        repeats.end("a", "7", Some(answer("")));
        assert_eq!(repeats.begin("a", "more", 0, 300), Repeat::New);
        assert_eq!(repeats.begin("b", "k", 0, 300), Repeat::Answered(answer("")));
    }
}
