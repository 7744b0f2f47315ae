//! Descriptions as they are read outside of the source: without links to its items, and in one line for each paragraph.

use serde_json::Value;

pub(super) fn make_plain(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "description" => *text = plain(text),
                    value => make_plain(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_plain),
        _ => {}
    }
}

fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        out.push_str(&rest[..at]);
        let link = &rest[at + 1..];
        let Some(end) = link.find("`]") else {
            out.push('[');
            rest = link;
            continue;
        };
        out.push_str(&link[..=end]);
        rest = &link[end + 2..];
        if rest.starts_with('(')
            && let Some(end) = rest.find(')')
        {
            rest = &rest[end + 1..];
        }
    }
    out.push_str(rest);
    let paragraphs = out.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_words_and_lines_paragraphs() {
        let text = "Answered by [`Reply::Done`](crate::Reply::Done); an\n[`Event`] is sent.\n\nMore [in brackets].";
        let plain = plain(text);
        assert_eq!(plain, "Answered by `Reply::Done`; an `Event` is sent.\n\nMore [in brackets].");
    }
}
