//! Every command of ours that the pages of `docs/` name, in their text or in their blocks, is one of the table, with those options.

use super::table::COMMANDS;
use super::{Command, group};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// Options that every command has, or that stand before all commands.
const OF_ALL: [&str; 2] = ["-h", "--help"];

/// Options before the verb that have a value.
const WITH_VALUE: [&str; 3] = ["--host", "--token-file", "--ca"];

/// What a page names: text between backquotes, and lines of blocks.
fn named(page: &str) -> Vec<String> {
    let mut text = String::new();
    let mut named = Vec::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.starts_with("```") || line.starts_with("<!-- lab") || line == "-->" {
            in_block = !in_block;
        } else if in_block {
            // Two forms of a usage stand side by side.
            named.extend(line.split("  ").flat_map(|part| part.split(" || ")).map(str::to_owned));
        } else {
            text += line;
            text += "\n";
        }
    }
    named.extend(text.split("`").skip(1).step_by(2).map(|span| span.replace('\n', " ")));
    named.retain(|it| it.trim_start().starts_with("xy "));
    named
}

/// What is wrong with a command, or with one of several forms of it.
fn fault(named: &str) -> Option<String> {
    let until = [" # ", " && ", " | ", " >", " 2>", "; "];
    let end = until.iter().filter_map(|mark| named.find(mark)).min().unwrap_or(named.len());
    let mut words = named[..end].split_whitespace().skip(1);
    let verb = loop {
        let word = words.next()?;
        if WITH_VALUE.contains(&word) {
            words.next()?;
        } else if !word.starts_with('-') {
            break word;
        }
    };
    if matches!(verb, "help" | "xl") {
        return None;
    }
    let words: Vec<&str> = words.collect();
    let Some(command) = COMMANDS.iter().find(|command| command.name == verb) else {
        return Some(format!("there is no verb {verb}"));
    };
    let Some(group) = group(command.name) else { return fault_of_options(command, &words) };
    let (names, words) = words.split_first()?;
    for name in names.split('|') {
        let full = format!("{verb} {name}");
        match group.commands.iter().find(|command| command.name == full) {
            None => return Some(format!("{verb} has no command {name}")),
            Some(command) => {
                if let Some(fault) = fault_of_options(command, words) {
                    return Some(fault);
                }
            }
        }
    }
    None
}

fn fault_of_options(command: &Command, words: &[&str]) -> Option<String> {
    let options = words.iter().flat_map(|word| word.split('|'));
    let options = options.map(|word| word.trim_matches(['[', ']']));
    for option in options.filter(|it| it.starts_with('-') && !OF_ALL.contains(it)) {
        let known = match option.strip_prefix("--") {
            Some(long) => {
                let name = long.split('=').next().unwrap_or_default();
                command.flags.iter().any(|flag| flag.long == name)
            }
            None => command.flags.iter().any(|flag| option[1..].starts_with(flag.short)),
        };
        if !known {
            return Some(format!("{} has no option {option}", command.name));
        }
    }
    None
}

#[test]
fn every_command_in_the_documents_is_known_with_its_options() {
    let mut faults = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(DOCS).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "md") {
            continue;
        }
        for named in named(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            if let Some(fault) = fault(named.trim()) {
                faults.push(format!("{}: `{named}`: {fault}", path.display()));
            }
        }
    }
    assert!(count > 100, "{count} commands were found");
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn a_word_that_no_command_knows_is_a_fault() {
    for right in
        ["xy list -l", "xy image import FILE --name x", "xy -N create x", "xy peer key|add"]
    {
        assert_eq!(fault(right), None);
    }
    for wrong in ["xy lists", "xy list --nonsense", "xy image push", "xy image list --nonsense"] {
        assert!(fault(wrong).is_some(), "{wrong}");
    }
    let page = "Say `xy one` or `xy\ntwo`.\n```usage\nxy three    xy four\n```\n";
    assert_eq!(
        named(page),
        ["xy three", "  xy four", "xy one", "xy two"].map(str::trim).map(str::to_owned)
    );
}
