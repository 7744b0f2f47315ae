//! What a caller says first, and what it is answered: a line each.

use std::fmt;

const PROTOCOL: &str = "xylem-peer";
const VERSION: &str = "1";

/// Longest line, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 512;
/// Longest reason for a refusal.
const WHY_BYTES_MAX: usize = 400;

/// A further connection for a transfer, in one direction beside the first.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Lane {
    pub transfer: [u8; 16],
    /// From 1 on; the first connection is 0.
    pub number: u8,
    /// Was given on the first connection.
    pub token: [u8; 16],
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({} of {})", self.number, hex(&self.transfer))
    }
}

/// What a caller wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// To know whether it is let in, and how far away this host is.
    Check,
    /// To hand over a VM.
    Receive,
    /// To know what became of one.
    Question,
    Lane(Lane),
}

impl Service {
    /// In a word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Receive => "receive",
            Self::Question => "question",
            Self::Lane(_) => "lane",
        }
    }

    pub(crate) fn line(&self) -> String {
        let name = self.name();
        match self {
            Self::Check | Self::Receive | Self::Question => {
                format!("{PROTOCOL} {VERSION} {name}\n")
            }
            Self::Lane(Lane { transfer, number, token }) => {
                let (transfer, token) = (hex(transfer), hex(token));
                format!("{PROTOCOL} {VERSION} {name} {transfer} {number} {token}\n")
            }
        }
    }

    /// Reads a caller's line. The error is told it.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [PROTOCOL, VERSION, "check"] => Ok(Self::Check),
            [PROTOCOL, VERSION, "receive"] => Ok(Self::Receive),
            [PROTOCOL, VERSION, "question"] => Ok(Self::Question),
            [PROTOCOL, VERSION, "lane", transfer, number, token] => {
                let wrong = || "a lane is a transfer, a number and a token".to_owned();
                Ok(Self::Lane(Lane {
                    transfer: unhex(transfer).ok_or_else(wrong)?,
                    number: number.parse().ok().filter(|it| *it > 0).ok_or_else(wrong)?,
                    token: unhex(token).ok_or_else(wrong)?,
                }))
            }
            [PROTOCOL, VERSION, service, ..] => Err(format!("it does not know '{service}'")),
            [PROTOCOL, version, ..] => {
                Err(format!("it speaks version {VERSION} of the protocol, not {version}"))
            }
            _ => Err(format!("it expected '{PROTOCOL}'")),
        }
    }
}

/// A caller is let in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Welcome {
    /// The release of the other daemon.
    pub release: String,
    /// As which peer it knows the caller.
    pub known_as: String,
}

/// What a caller is answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Yes(Welcome),
    No(String),
}

impl Answer {
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Yes(Welcome { release, known_as }) => format!("yes {release} {known_as}\n"),
            Self::No(why) => format!("no {}\n", one_line(why)),
        }
    }

    /// `None`: it is neither.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ')? {
            ("yes", rest) => {
                let (release, known_as) = rest.split_once(' ')?;
                let [release, known_as] = [release, known_as].map(one_line);
                Some(Self::Yes(Welcome { release, known_as }))
            }
            ("no", why) => Some(Self::No(one_line(why))),
            _ => None,
        }
    }
}

/// Short, and without anything that a terminal would obey.
fn one_line(text: &str) -> String {
    let text = text.chars().map(|it| if it.is_control() { ' ' } else { it });
    let mut bytes = 0;
    text.take_while(|it| {
        bytes += it.len_utf8();
        bytes <= WHY_BYTES_MAX
    })
    .collect()
}

fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let whole = base16ct::mixed::decode(text, &mut bytes).ok()?.len() == 16;
    whole.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn each_service_is_understood() {
        let lane = Lane { transfer: [0xab; 16], number: 3, token: [1; 16] };
        let mut lines = String::new();
        for service in [Service::Check, Service::Receive, Service::Question, Service::Lane(lane)] {
            let line = service.line();
            assert_eq!(Service::parse(line.trim_end()), Ok(service));
            assert!(line.len() <= LINE_BYTES_MAX);
            lines += &line;
        }
        expect![[r"
            xylem-peer 1 check
            xylem-peer 1 receive
            xylem-peer 1 question
            xylem-peer 1 lane abababababababababababababababab 3 01010101010101010101010101010101
        "]]
        .assert_eq(&lines);
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let told: String = [
            "",
            "GET / HTTP/1.1",
            "xylem-peer",
            "xylem-peer 2 check",
            "xylem-peer 1 fly away",
            "xylem-peer 1 lane ab 1 cd",
            "xylem-peer 1 lane abababababababababababababababab 0 01010101010101010101010101010101",
            "xylem-peer 1 lane +bababababababababababababababab 1 01010101010101010101010101010101",
        ]
        .map(|line| format!("{line}: {}\n", Service::parse(line).unwrap_err()))
        .concat();
        expect![[r#"
            : it expected 'xylem-peer'
            GET / HTTP/1.1: it expected 'xylem-peer'
            xylem-peer: it expected 'xylem-peer'
            xylem-peer 2 check: it speaks version 1 of the protocol, not 2
            xylem-peer 1 fly away: it does not know 'fly'
            xylem-peer 1 lane ab 1 cd: a lane is a transfer, a number and a token
            xylem-peer 1 lane abababababababababababababababab 0 01010101010101010101010101010101: a lane is a transfer, a number and a token
            xylem-peer 1 lane +bababababababababababababababab 1 01010101010101010101010101010101: a lane is a transfer, a number and a token
        "#]].assert_eq(&told);
    }

    #[test]
    fn an_answer_is_one_line_that_a_terminal_may_show() {
        let yes = Answer::Yes(Welcome { release: "0.1.0".into(), known_as: "a".into() });
        assert_eq!(Answer::parse(yes.line().trim_end()), Some(yes));
        let no = Answer::No("not\x1b[2J now\nnor ever".into());
        assert_eq!(no.line(), "no not [2J now nor ever\n");
        assert_eq!(Answer::parse("no \x1bx"), Some(Answer::No(" x".into())));
        let long = Answer::No("ä".repeat(1000)).line();
        assert!(long.len() <= LINE_BYTES_MAX);
        assert_eq!(
            ["yes", "yes 0.1.0", "maybe x", ""].map(Answer::parse),
            [None, None, None, None]
        );
    }
}
