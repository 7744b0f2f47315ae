//! Compares what a page shows with what a command printed.

/// What may differ between the two, as a page's mark names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Class {
    Numbers,
    /// A number and a unit of bytes.
    Sizes,
    /// UUIDs, MAC addresses, digests and commits.
    Ids,
    /// A day, or a day and a time.
    Dates,
    /// Six letters and dashes, as a list has them of a domain.
    States,
}

impl Class {
    const ALL: [(&str, Self); 5] = [
        ("numbers", Self::Numbers),
        ("sizes", Self::Sizes),
        ("ids", Self::Ids),
        ("dates", Self::Dates),
        ("states", Self::States),
    ];

    pub(super) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(it, _)| *it == name);
        found.map(|(_, class)| class).ok_or_else(|| {
            let known = Self::ALL.map(|(name, _)| name).join(", ");
            format!("'{name}' is none of {known}")
        })
    }

    /// How many bytes at the beginning of `text` are such a thing, and what stands for it.
    fn length(self, text: &str) -> usize {
        match self {
            Self::Numbers => number(text),
            Self::Sizes => size(text),
            Self::Ids => id(text),
            Self::Dates => date(text),
            Self::States => state(text),
        }
    }

    fn stand_in(self) -> &'static str {
        match self {
            Self::Numbers => "NUMBER",
            Self::Sizes => "SIZE",
            Self::Ids => "ID",
            Self::Dates => "DATE",
            Self::States => "STATE",
        }
    }
}

/// A line that stands for any number of lines.
const ANY_LINES: &str = "...";

/// The first line of a page's output that was not printed; `None` if it all was, in this order and without others but where
/// the page has a line of three dots.
pub(super) fn difference(shown: &str, printed: &str, classes: &[Class]) -> Option<String> {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| without(line, classes));
        lines.filter(|line| !line.is_empty()).collect()
    };
    let (shown, printed) = (lines(shown), lines(printed));
    let mut at = 0;
    let parts: Vec<&[String]> = shown.split(|line| line == ANY_LINES).collect();
    for (index, part) in parts.iter().enumerate() {
        let rest = &printed[at..];
        let found = match (index, index + 1 == parts.len()) {
            // At the beginning, at the end, or anywhere.
            (0, false) => rest.starts_with(part).then_some(0),
            (0, true) => (rest == *part).then_some(0),
            (_, true) => rest.ends_with(part).then(|| rest.len() - part.len()),
            _ => (0..=rest.len()).find(|from| rest[*from..].starts_with(part)),
        };
        match found {
            Some(from) => at += from + part.len(),
            None => return Some(first_that_differs(part, rest)),
        }
    }
    None
}

fn first_that_differs(part: &[String], printed: &[String]) -> String {
    match part.iter().find(|line| !printed.contains(line)) {
        Some(line) => format!("'{line}' was not printed"),
        None => match printed.iter().find(|line| !part.contains(line)) {
            Some(line) => format!("'{line}' was printed, too"),
            None => "the lines come in another order".to_owned(),
        },
    }
}

/// A line with words in the place of what may differ, and one space between columns.
fn without(line: &str, classes: &[Class]) -> String {
    // Longer things first: a date has numbers in it.
    let order = [Class::Dates, Class::Ids, Class::Sizes, Class::Numbers, Class::States];
    let mut text = String::new();
    let mut rest = line;
    let mut in_word = false;
    while let Some(next) = rest.chars().next() {
        let starts = order.iter().filter(|class| !in_word && classes.contains(class));
        let found = starts.map(|class| (class, class.length(rest))).find(|(_, length)| *length > 0);
        if let Some((class, length)) = found {
            text += class.stand_in();
            rest = &rest[length..];
            in_word = true;
        } else {
            text.push(next);
            rest = &rest[next.len_utf8()..];
            in_word = next.is_alphanumeric();
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Bytes of the longest beginning whose characters are such.
fn leading(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|character| !is(character)).unwrap_or(text.len())
}

/// `length`, if no word goes on there.
fn whole(text: &str, length: usize) -> usize {
    let goes_on = text[length..].starts_with(|it: char| it.is_alphanumeric());
    if goes_on { 0 } else { length }
}

fn number(text: &str) -> usize {
    let mut length = leading(text, |it| it.is_ascii_digit());
    while length > 0 && text[length..].starts_with(['.', ',']) {
        match leading(&text[length + 1..], |it| it.is_ascii_digit()) {
            0 => break,
            more => length += 1 + more,
        }
    }
    length
}

fn size(text: &str) -> usize {
    let digits = number(text);
    if digits == 0 {
        return 0;
    }
    let spaces = leading(&text[digits..], |it| it == ' ').min(1);
    let unit = &text[digits + spaces..];
    let letters = leading(unit, |it| it.is_ascii_alphabetic());
    let is_unit = match &unit[..letters] {
        "B" => true,
        other => {
            other.starts_with(['k', 'K', 'M', 'G', 'T']) && matches!(&other[1..], "" | "B" | "iB")
        }
    };
    if is_unit { whole(text, digits + spaces + letters) } else { 0 }
}

fn id(text: &str) -> usize {
    let length = leading(text, |it| it.is_ascii_hexdigit() || it == '-' || it == ':');
    let word = &text[..length];
    let lengths = |mark| word.split(mark).map(str::len).collect::<Vec<_>>();
    let is_id = lengths('-') == [8, 4, 4, 4, 12]
        || lengths(':') == [2; 6]
        || (length >= 8 && word.chars().all(|it| it.is_ascii_hexdigit()));
    if is_id { whole(text, length) } else { 0 }
}

fn date(text: &str) -> usize {
    let like = |form: &str, text: &str| {
        let fits =
            |(form, it): (char, char)| if form == '0' { it.is_ascii_digit() } else { form == it };
        text.len() >= form.len() && form.chars().zip(text.chars()).all(fits)
    };
    if !like("0000-00-00", text) {
        return 0;
    }
    let mut length = 10;
    for time in ["T00:00:00", " 00:00:00", "T00:00", " 00:00"] {
        if like(time, &text[length..]) {
            length += time.len();
            break;
        }
    }
    if text[length..].starts_with('Z') {
        length += 1;
    }
    whole(text, length)
}

fn state(text: &str) -> usize {
    let length = leading(text, |it| "rbpscd-".contains(it));
    if length == 6 { whole(text, length) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Class; 5] = [Class::Numbers, Class::Sizes, Class::Ids, Class::Dates, Class::States];

    #[test]
    fn only_what_a_mark_names_may_differ() {
        let shown = "Name   ID  Mem State  Time(s)\nweb1   3   512 -b---- 1.5\n";
        let printed = "Name          ID   Mem   State   Time(s)\nweb1  12 1024 r-----  20.1\n";
        assert_eq!(difference(shown, printed, &[Class::Numbers, Class::States]), None);
        assert_eq!(
            difference(shown, printed, &[Class::Numbers]),
            Some("'web1 NUMBER NUMBER -b---- NUMBER' was not printed".to_owned())
        );
        let other = printed.replace("web1", "web2");
        assert!(difference(shown, &other, &ALL).is_some());
    }

    #[test]
    fn things_of_each_class_are_recognised_whole() {
        for (line, wanted) in [
            ("made 2026-11-26T18:33:57Z", "made DATE"),
            ("made 2026-11-26 18:33, 3 of them", "made DATE, NUMBER of them"),
            ("6c61622d-636c-6f75-642d-696d61676521 web", "ID web"),
            ("00:16:3e:00:00:07", "ID"),
            ("commit 0ee03573f6", "commit ID"),
            ("10 GiB, 1.5G and 3 guests", "SIZE, SIZE and NUMBER guests"),
            ("sha256 is xvda1 of web2", "sha256 is xvda1 of web2"),
            ("10.0.0.5/24", "NUMBER/NUMBER"),
            ("-b---- and ------", "STATE and STATE"),
        ] {
            assert_eq!(without(line, &ALL), wanted);
        }
    }

    #[test]
    fn three_dots_are_any_lines() {
        let printed = "one\ntwo\nthree\nfour\n";
        for shown in
            ["one\n...\n", "...\nfour\n", "one\n...\nthree\n...\n", "...\ntwo\nthree\n...\n"]
        {
            assert_eq!(difference(shown, printed, &[]), None, "{shown}");
        }
        for shown in
            ["one\n", "one\n...\ntwo\n", "two\n...\n", "...\nthree\n...\ntwo\n...\n", "one\ntwo\n"]
        {
            assert!(difference(shown, printed, &[]).is_some(), "{shown}");
        }
        // What was printed beyond a page's last line is a difference as well.
        let more = difference("one\ntwo\nthree\n", printed, &[]);
        assert_eq!(more, Some("'four' was printed, too".to_owned()));
    }
}
