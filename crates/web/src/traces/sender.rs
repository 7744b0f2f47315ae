//! OTLP over HTTP: who is asked again, and when.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use ureq::Agent;
use ureq::http::HeaderMap;

use super::Collector;
use crate::tls;

const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Times that the same request is sent.
const ATTEMPTS: u32 = 5;
/// Longest time between two of them, also if the collector wants more.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a collector says.
#[derive(Debug, Eq, PartialEq)]
enum Verdict {
    Taken,
    /// The same request would be refused again.
    Refused,
    /// After this time, if it has said one.
    Again(Option<Duration>),
}

impl Verdict {
    /// As the specification of OTLP has it.
    fn of(status: u16, headers: &HeaderMap) -> Self {
        match status {
            200..=299 => Self::Taken,
            429 | 502..=504 => {
                let seconds = || headers.get("retry-after")?.to_str().ok()?.trim().parse().ok();
                Self::Again(seconds().map(Duration::from_secs))
            }
            _ => Self::Refused,
        }
    }
}

/// How long to wait after so many attempts.
fn pause(attempts: u32, wanted: Option<Duration>) -> Duration {
    let usual = Duration::from_secs(1 << attempts.saturating_sub(1).min(5));
    wanted.unwrap_or(usual).min(PAUSE_MAX)
}

pub(super) struct Sender {
    agent: Agent,
    url: String,
    /// Said once, not for each request.
    is_failing: Cell<bool>,
}

impl Sender {
    pub(super) fn new(collector: &Collector) -> Result<Self> {
        let url = collector.url.clone();
        let agent = tls::agent(&url, collector.ca.as_deref(), ANSWER_TIME)?;
        Ok(Self { agent, url, is_failing: Cell::new(false) })
    }

    /// Sends a request, again if need be. Returns whether it was taken.
    pub(super) fn send(&self, json: &str) -> bool {
        for attempts in 1..=ATTEMPTS {
            let (verdict, why) = self.attempt(json);
            self.note((verdict != Verdict::Taken).then_some(why));
            match verdict {
                Verdict::Taken => return true,
                Verdict::Refused => return false,
                Verdict::Again(wanted) if attempts < ATTEMPTS => {
                    thread::sleep(pause(attempts, wanted));
                }
                Verdict::Again(_) => {}
            }
        }
        false
    }

    fn attempt(&self, json: &str) -> (Verdict, String) {
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        match request.send(json) {
            Ok(response) => {
                let status = response.status();
                (Verdict::of(status.as_u16(), response.headers()), status.to_string())
            }
            Err(error) => (Verdict::Again(None), error.to_string()),
        }
    }

    fn note(&self, failure: Option<String>) {
        let was_failing = self.is_failing.replace(failure.is_some());
        match failure {
            Some(why) if !was_failing => {
                eprintln!("<4>traces are not taken by {}: {why}", self.url);
            }
            None if was_failing => eprintln!("<6>traces are taken by {}", self.url),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_after_a_time_with_a_bound() {
        let mut headers = HeaderMap::new();
        for (status, expected) in [
            (200, Verdict::Taken),
            (400, Verdict::Refused),
            (301, Verdict::Refused),
            (500, Verdict::Refused),
            (429, Verdict::Again(None)),
            (503, Verdict::Again(None)),
        ] {
            assert_eq!(Verdict::of(status, &headers), expected, "{status}");
        }
        headers.insert("retry-after", "7".parse().unwrap());
        assert_eq!(Verdict::of(503, &headers), Verdict::Again(Some(Duration::from_secs(7))));
        let pauses: Vec<_> = (1..=7).map(|it| pause(it, None).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pause(1, Some(Duration::from_secs(3600))), PAUSE_MAX);
    }
}
