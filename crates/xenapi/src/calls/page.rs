//! The page of all classes and methods, `docs/xenapi.md`, made of the tables that decide about them.

use core::fmt::Write as _;

use super::{Does, TABLE};
use crate::model::Class;
use crate::rights;

const HEAD: &str = include_str!("page.md");

fn page() -> String {
    let mut page = String::from(HEAD);
    page.push_str("\n## Classes\n\n| class | fields | that clients may set |\n|---|---|---|\n");
    for class in Class::ALL {
        let def = class.def();
        let labels: Vec<String> = def.labels().map(|it| format!("`{it}`")).collect();
        let (name, fields) = (def.name, def.fields().count());
        let _ = writeln!(page, "| `{name}` | {fields} | {} |", labels.join(" "));
    }
    page.push_str("\n## Methods\n\n| method | parameters | role | what it does in Xylem |\n|---|---|---|---|\n");
    for row in TABLE {
        if let Does::Call(_) = row.does {
            let (name, params, role, note) =
                (row.name, row.params, rights::name(row.role), row.note);
            let _ = writeln!(page, "| `{name}` | {params} | {role} | {note} |");
        }
    }
    page.push_str(
        "\n## Refused\n\nThese fail with `NOT_IMPLEMENTED`.\n\n| method | why |\n|---|---|\n",
    );
    for row in TABLE.iter().filter(|row| matches!(row.does, Does::Refused)) {
        let _ = writeln!(page, "| `{}` | {} |", row.name, row.note);
    }
    page
}

#[test]
fn the_page_is_as_the_tables_are() {
    expect_test::expect_file!["../../../../docs/xenapi.md"].assert_eq(&page());
}

#[test]
fn each_method_is_there_once_and_says_what_it_does() {
    let mut names: Vec<_> = TABLE.iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TABLE.len());
    for row in TABLE {
        let words: Vec<_> = row.params.split_ascii_whitespace().collect();
        let optional = words.iter().position(|it| it.ends_with('?')).unwrap_or(words.len());
        assert!(words[optional..].iter().all(|it| it.ends_with('?')), "{}", row.name);
        assert!(!row.note.is_empty(), "{}", row.name);
    }
}
