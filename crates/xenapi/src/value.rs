//! Values of XenAPI, whatever they are written in.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::failure::Failure;

/// The fields of an object.
pub type Record = BTreeMap<&'static str, Value>;

/// The reference that points to nothing.
pub(crate) const NULL: &str = "OpaqueRef:NULL";

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Str(String),
    Int(i64),
    /// A 32-bit integer. XML-RPC has a type for these; other integers are written without one.
    Count(u32),
    Float(f64),
    Bool(bool),
    /// In seconds since 1970.
    Date(i64),
    Array(Vec<Value>),
    Map(BTreeMap<String, Value>),
    /// A whole object, which many readers share.
    Record(Arc<Record>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

impl From<bool> for Value {
    fn from(it: bool) -> Self {
        Self::Bool(it)
    }
}

impl From<i64> for Value {
    fn from(it: i64) -> Self {
        Self::Int(it)
    }
}

impl From<u32> for Value {
    fn from(it: u32) -> Self {
        Self::Int(i64::from(it))
    }
}

impl From<u64> for Value {
    fn from(it: u64) -> Self {
        Self::Int(i64::try_from(it).unwrap_or(i64::MAX))
    }
}

impl<V: Into<Value>> FromIterator<V> for Value {
    fn from_iter<I: IntoIterator<Item = V>>(items: I) -> Self {
        Self::Array(items.into_iter().map(Into::into).collect())
    }
}

impl Value {
    #[must_use]
    pub fn null() -> Self {
        Self::from(NULL)
    }

    /// What a call without a result gives.
    #[must_use]
    pub fn void() -> Self {
        Self::from("")
    }

    #[must_use]
    pub fn map() -> Self {
        Self::Map(BTreeMap::new())
    }

    /// A map of texts.
    pub fn texts<K: Into<String>, V: Into<String>>(
        items: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let item = |(key, value): (K, V)| (key.into(), Self::Str(value.into()));
        Self::Map(items.into_iter().map(item).collect())
    }

    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Integers are also accepted as decimal texts: in XML-RPC they have no type.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(it) => Some(*it),
            Self::Count(it) => Some(i64::from(*it)),
            Self::Str(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Likewise.
    #[must_use]
    pub fn as_float(&self) -> Option<f64> {
        let number = match self {
            Self::Float(it) => *it,
            Self::Str(text) => text.trim().parse().ok()?,
            // Beyond 2^53 the nearest is near enough: these are seconds and shares.
            #[expect(clippy::cast_precision_loss, reason = "the nearest is near enough")]
            other => other.as_int()? as f64,
        };
        number.is_finite().then_some(number)
    }

    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(it) => Some(*it),
            Self::Str(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_date(&self) -> Option<i64> {
        match self {
            Self::Date(it) => Some(*it),
            Self::Str(text) => parse_date(text),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_map(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Bytes that this takes, roughly: what clients may leave with us is limited.
    #[must_use]
    pub fn size(&self) -> usize {
        const PART: usize = 16;
        match self {
            Self::Str(text) => PART + text.len(),
            Self::Array(items) => PART + items.iter().map(Self::size).sum::<usize>(),
            Self::Map(map) => {
                PART + map.iter().map(|(key, value)| key.len() + value.size()).sum::<usize>()
            }
            Self::Record(record) => PART + record.values().map(Self::size).sum::<usize>(),
            _ => PART,
        }
    }
}

/// The end of a call.
pub type Answer = Result<Value, Failure>;

const SECONDS_PER_DAY: i64 = 86_400;

/// As XenAPI writes a moment: `20261121T02:33:44Z`, without hyphens.
#[must_use]
pub(crate) fn date_text(unix_s: i64) -> String {
    let (days, seconds) = (unix_s.div_euclid(SECONDS_PER_DAY), unix_s.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let _ = write!(text, "{year:04}{month:02}{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    text
}

/// Of that form or of RFC 3339's, in UTC.
#[must_use]
pub(crate) fn parse_date(text: &str) -> Option<i64> {
    let (date, time) = text.split_once('T')?;
    let time = time.strip_suffix('Z').unwrap_or(time);
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    let digits = |text: &str, separator: char| -> Option<String> {
        let digits: String = text.chars().filter(|it| *it != separator).collect();
        digits.bytes().all(|it| it.is_ascii_digit()).then_some(digits)
    };
    let (date, time) = (digits(date, '-')?, digits(time, ':')?);
    if date.len() != 8 || time.len() != 6 {
        return None;
    }
    let part = |text: &str, at: usize, len: usize| text.get(at..at + len)?.parse::<i64>().ok();
    let (year, month, day) = (part(&date, 0, 4)?, part(&date, 4, 2)?, part(&date, 6, 2)?);
    let (hour, minute, second) = (part(&time, 0, 2)?, part(&time, 2, 2)?, part(&time, 4, 2)?);
    let is_valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let seconds = hour * 3600 + minute * 60 + second;
    is_valid.then(|| days_before(year, month, day) * SECONDS_PER_DAY + seconds)
}

/// Days from 1970 to a date of the Gregorian calendar. Years begin in March here, so that a leap day is a year's last.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The inverse: year, month, day.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_are_written_without_hyphens_and_read_with_or_without() {
        for (unix_s, text) in [
            (0, "19700101T00:00:00Z"),
            (951_827_696, "20000229T12:34:56Z"),
            (1_795_228_424, "20261121T02:33:44Z"),
        ] {
            assert_eq!(date_text(unix_s), text);
            assert_eq!(parse_date(text), Some(unix_s));
        }
        assert_eq!(parse_date("2026-11-21T02:33:44Z"), Some(1_795_228_424));
        assert_eq!(parse_date("2026-11-21T02:33:44.123Z"), Some(1_795_228_424));
        for bad in ["", "T", "20261321T00:00:00Z", "2026-11-21", "20261121T02:33Z", "äöü…TT"] {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_may_be_texts() {
        assert_eq!(Value::from("42").as_int(), Some(42));
        assert_eq!(Value::from("60.1").as_float(), Some(60.1));
        assert_eq!(Value::Int(60).as_float(), Some(60.0));
        for bad in ["", "4x", "1e3"] {
            assert_eq!(Value::from(bad).as_int(), None, "{bad}");
        }
        assert_eq!(Value::from("NaN").as_float(), None);
    }

    proptest! {
        #[test]
        fn each_second_is_read_as_it_was_written(unix_s in -62_135_596_800..253_402_300_799_i64) {
            prop_assert_eq!(parse_date(&date_text(unix_s)), Some(unix_s));
        }

        #[test]
        fn whatever_is_no_date_is_refused(text in ".{0,30}") {
            let _ = parse_date(&text);
        }
    }
}
