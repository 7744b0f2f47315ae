//! Parses a command's options and operands, as described by its table entry.

use lexopt::{Arg, Parser};

use crate::command::Command;
use crate::session::Failure;

/// An option of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    /// NUL if there is none.
    pub(crate) short: char,
    /// Empty if there is none; then the short name is the option's name.
    pub(crate) long: &'static str,
    /// Name of the option's value; empty if it takes none.
    pub(crate) value: &'static str,
    pub(crate) about: &'static str,
}

impl Flag {
    pub(crate) const fn new(short: char, long: &'static str, about: &'static str) -> Self {
        Self { short, long, value: "", about }
    }

    pub(crate) const fn with_value(
        short: char,
        long: &'static str,
        value: &'static str,
        about: &'static str,
    ) -> Self {
        Self { short, long, value, about }
    }

    /// The option as shown in the help.
    pub(crate) fn synopsis(&self) -> String {
        let short = if self.short == '\0' { String::new() } else { format!("-{}", self.short) };
        let long = if self.long.is_empty() { String::new() } else { format!("--{}", self.long) };
        let separator = if short.is_empty() || long.is_empty() { "" } else { ", " };
        let value = match (self.value, long.is_empty()) {
            ("", _) => String::new(),
            (value, true) => format!(" {value}"),
            (value, false) => format!("={value}"),
        };
        format!("{short}{separator}{long}{value}")
    }
}

/// The parsed options and operands.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Options {
    given: Vec<(char, &'static str, String)>,
    pub(crate) operands: Vec<String>,
}

impl Options {
    /// Parses `arguments` of `command`. Options may come before, between and after operands.
    pub(crate) fn parse(command: &Command, arguments: Vec<String>) -> Result<Self, Failure> {
        let name = command.name;
        let wrong = |what: String| Failure::usage(format!("{name}: {what}; see 'xy help {name}'"));
        let mut options = Self::default();
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| wrong(error.to_string()))? {
            let flag = match argument {
                Arg::Value(value) => {
                    options.operands.push(value.to_string_lossy().into_owned());
                    continue;
                }
                Arg::Short(short) => command.flags.iter().find(|flag| flag.short == short),
                Arg::Long(long) => command.flags.iter().find(|flag| flag.long == long),
            };
            let Some(flag) = flag else { return Err(wrong(argument.unexpected().to_string())) };
            let value = if flag.value.is_empty() {
                String::new()
            } else {
                let value = parser.value().map_err(|error| wrong(error.to_string()))?;
                value.to_string_lossy().into_owned()
            };
            options.given.push((flag.short, flag.long, value));
        }
        let (min, max) = command.operands;
        let count = options.operands.len();
        if count < min {
            let plural = if min == 1 { "" } else { "s" };
            return Err(wrong(format!("requires at least {min} argument{plural}")));
        }
        if count > max {
            return Err(wrong(format!("{:?} is one argument too many", options.operands[max])));
        }
        Ok(options)
    }

    fn matching(&self, name: &str) -> impl Iterator<Item = &str> {
        self.given
            .iter()
            .filter(move |(short, long, _)| {
                *long == name || (name.len() == 1 && name.starts_with(*short))
            })
            .map(|(_, _, value)| value.as_str())
    }

    /// Whether the option was given; `name` is its long name or, if it has none, its letter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.matching(name).next().is_some()
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.matching(name).count()
    }

    /// The values of all its uses.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        self.matching(name).collect()
    }

    /// The value of the option's last use.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.matching(name).last()
    }

    pub(crate) fn targets(&self) -> Vec<api::Target> {
        self.operands.iter().cloned().map(api::Target).collect()
    }
}
