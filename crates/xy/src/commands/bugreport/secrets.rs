//! Leaves passwords out of a text.

/// Words that announce a secret.
const WORDS: &[&str] = &["passw", "secret", "private key", "token"];

/// Each line up to the secret in it: what stands behind such a word and its `=` or `:` is left out.
pub(super) fn without_secrets(text: &str) -> String {
    text.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    // As long as the line, so a place in one is a place in the other.
    let small = line.to_ascii_lowercase();
    let Some(word) = WORDS.iter().filter_map(|word| small.find(word)).min() else {
        return line.to_owned();
    };
    let value = small[word..].find(['=', ':']).map(|at| word + at + 1);
    let end = if line.ends_with('\n') { "\n" } else { "" };
    match value {
        Some(value) => format!("{}(left out){end}", &line[..value]),
        // The secret may be the next word.
        None => format!("{}(left out){end}", &line[..word]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_such_a_word_is_left_out() {
        for (text, expected) in [
            ("vncpasswd = \"hunter2\"\n", "vncpasswd =(left out)\n"),
            ("a\n  \"VncPassword\": \"x\",\nb\n", "a\n  \"VncPassword\":(left out)\nb\n"),
            ("set_password vnc hunter2", "set_(left out)"),
            ("ü secret=1, passwd=2\n", "ü secret=(left out)\n"),
            ("-----BEGIN PRIVATE KEY-----\n", "-----BEGIN (left out)\n"),
            ("nothing to hide\n\n", "nothing to hide\n\n"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(text), expected, "{text}");
        }
    }
}
