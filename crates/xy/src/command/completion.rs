//! Completion of a command line in a shell.
//!
//! The shells' scripts only ask `xy complete`, which knows the commands: one list of words for all shells, and nothing to
//! install anew when a command changes.

use api::{CheckpointRequest, HostRequest, PeerRequest, Reply, Request, StorageRequest, Target};

use super::{COMMANDS, Command, GROUPS};
use crate::options::Flag;
use crate::session::Session;

/// What can stand in one place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Words {
    Nothing,
    /// The shell completes these.
    Files,
    /// Domains that run.
    Domains,
    /// Those, and VMs that are defined.
    Vms,
    Srs,
    Vdis,
    Images,
    /// Of the VM that stands before.
    Checkpoints,
    /// `VM:NAME` of any VM, or a file.
    AllCheckpoints,
    /// The virtual device numbers of the VM that stands before.
    Disks,
    /// The numbers of its network interfaces.
    Vifs,
    Peers,
    Pools,
    Shells,
}

/// A word that fits, with what it is.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Candidate {
    word: String,
    about: String,
}

impl Candidate {
    fn new(word: impl Into<String>, about: impl Into<String>) -> Self {
        Self { word: word.into(), about: about.into() }
    }
}

/// Printed in place of words where the shell shall complete files.
const FILES: &str = ":files";

/// The candidates for the last of the words behind `xy`, a line each: the word, a tab, what it is.
pub(super) fn complete(session: &mut Session, words: &[String]) -> String {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", words),
    };
    let mut text = String::new();
    match place(before, last) {
        Place::Candidates(all) => put(&mut text, &all, last),
        Place::Words(words, of) => match words {
            Words::Files => text.push_str(FILES),
            Words::AllCheckpoints => {
                put(&mut text, &named(session, words, of.as_deref()), last);
                text.push_str(FILES);
            }
            words => put(&mut text, &named(session, words, of.as_deref()), last),
        },
    }
    text
}

fn put(text: &mut String, all: &[Candidate], begin: &str) {
    for Candidate { word, about } in all.iter().filter(|it| it.word.starts_with(begin)) {
        // A name is not a terminal's to interpret.
        if !word.contains(char::is_control) {
            text.push_str(&format!("{word}\t{about}\n"));
        }
    }
}

/// What is completed.
#[derive(Debug, Eq, PartialEq)]
enum Place {
    Candidates(Vec<Candidate>),
    /// Words that have to be asked for, and the operand before them.
    Words(Words, Option<String>),
}

fn place(before: &[String], last: &str) -> Place {
    let mut rest = before.iter().map(String::as_str).skip_while(|word| word.starts_with('-'));
    let Some(first) = rest.next() else {
        return Place::Candidates(names(COMMANDS, ""));
    };
    let Some(mut command) = COMMANDS.iter().find(|command| command.name == first) else {
        return Place::Candidates(Vec::new());
    };
    if let Some(group) = GROUPS.iter().find(|group| group.name == first) {
        let prefix = format!("{first} ");
        let Some(second) = rest.next() else {
            return Place::Candidates(names(group.commands, &prefix));
        };
        let of = |it: &&Command| it.name.strip_prefix(&prefix) == Some(second);
        match group.commands.iter().find(of) {
            Some(found) => command = found,
            None => return Place::Candidates(Vec::new()),
        }
    }
    let given: Vec<&str> = rest.collect();
    of_command(command, &given, last)
}

fn names(commands: &[Command], prefix: &str) -> Vec<Candidate> {
    let name = |it: &Command| it.name.strip_prefix(prefix).unwrap_or(it.name).to_owned();
    commands.iter().map(|it| Candidate::new(name(it), it.about)).collect()
}

fn of_command(command: &Command, given: &[&str], last: &str) -> Place {
    let flag = |word: &str| command.flags.iter().find(|flag| is_word_of(flag, word));
    if let Some(flag) = given.last().and_then(|word| flag(word)).filter(|it| !it.value.is_empty()) {
        return Place::Words(words_of(flag.value), None);
    }
    if last.starts_with('-') {
        let flags = command.flags.iter().map(|flag| {
            let word = if flag.long.is_empty() {
                format!("-{}", flag.short)
            } else {
                format!("--{}", flag.long)
            };
            Candidate::new(word, flag.about)
        });
        return Place::Candidates(flags.collect());
    }
    let mut operands = Vec::new();
    let mut is_value = false;
    for word in given {
        if !is_value && !word.starts_with('-') {
            operands.push(*word);
        }
        is_value = flag(word).is_some_and(|flag| !flag.value.is_empty());
    }
    let places = places_of(command.usage);
    let index = operands.len();
    let place = places.get(index).or_else(|| places.last().filter(|(_, is_last)| *is_last));
    let words = place.map_or(Words::Nothing, |(words, _)| *words);
    Place::Words(words, operands.first().map(|word| (*word).to_owned()))
}

fn is_word_of(flag: &Flag, word: &str) -> bool {
    let is_short = word.strip_prefix('-').is_some_and(|it| it.chars().eq([flag.short]));
    let is_long = word.strip_prefix("--").is_some_and(|it| it == flag.long && !it.is_empty());
    is_short || is_long
}

/// The operands of a usage line, and whether more of the same kind may follow.
fn places_of(usage: &str) -> Vec<(Words, bool)> {
    let mut places = Vec::new();
    // "[<ConfigFile>] <CheckpointFile>", "<Domain ...>", "<-a|Domain ...>", "<Address[:Port]>", "[Path ...]".
    let mut rest = usage;
    while let Some(begin) = rest.find(['<', '[']) {
        let end = if rest[begin..].starts_with('<') { '>' } else { ']' };
        let within = &rest[begin + 1..];
        if end == ']' && within.starts_with('<') {
            rest = within;
            continue;
        }
        let (part, behind) = within.split_once(end).unwrap_or((within, ""));
        rest = behind;
        let (part, is_last) = match part.strip_suffix("...") {
            Some(part) => (part.trim_end(), true),
            None => (part, false),
        };
        let part = part.strip_prefix("-a|").unwrap_or(part);
        if part != "options" && part != "vars" && !part.starts_with('-') {
            places.push((words_of(part), is_last));
        }
    }
    places
}

fn words_of(name: &str) -> Words {
    match name {
        "Domain" | "DomainName" | "DomainId" => Words::Domains,
        "VM" => Words::Vms,
        "SR" => Words::Srs,
        "SR:VDI" => Words::Vdis,
        "Image" => Words::Images,
        "CPU Pool" => Words::Pools,
        "Checkpoint" => Words::Checkpoints,
        "VM:Checkpoint|File" => Words::AllCheckpoints,
        "VirtualDevice" | "DevId" => Words::Disks,
        "DevId|mac" => Words::Vifs,
        "host" => Words::Peers,
        "ConfigFile" | "CheckpointFile" | "FILE" | "path" => Words::Files,
        "bash|zsh|fish" => Words::Shells,
        _ => Words::Nothing,
    }
}

/// Asks the daemon. Without one, and after an error, there are none: a shell is no place for a message.
fn named(session: &mut Session, words: Words, of: Option<&str>) -> Vec<Candidate> {
    let target = || of.map(|name| Target(name.to_owned())).into_iter().collect::<Vec<_>>();
    let of_storage = |request| Request::Storage(request);
    let request = match words {
        Words::Nothing | Words::Files => return Vec::new(),
        Words::Shells => {
            return ["bash", "zsh", "fish"].map(|shell| Candidate::new(shell, "")).to_vec();
        }
        Words::Domains => Request::List { targets: Vec::new() },
        Words::Vms => Request::Vms,
        Words::Srs => of_storage(StorageRequest::SrList),
        Words::Vdis => of_storage(StorageRequest::VdiList { srs: Vec::new() }),
        Words::Images => of_storage(StorageRequest::ImageList),
        Words::Checkpoints => {
            Request::Checkpoint(CheckpointRequest::CheckpointList { vms: target() })
        }
        Words::AllCheckpoints => {
            Request::Checkpoint(CheckpointRequest::CheckpointList { vms: Vec::new() })
        }
        Words::Disks => Request::BlockList { targets: target() },
        Words::Vifs => Request::NetworkList { targets: target() },
        Words::Peers => Request::Peer(PeerRequest::List),
        Words::Pools => Request::Host(HostRequest::Pools),
    };
    match session.call(&request) {
        Ok(reply) => candidates(words, reply),
        Err(_) => Vec::new(),
    }
}

fn candidates(words: Words, reply: Reply) -> Vec<Candidate> {
    match reply {
        Reply::Domains(rows) => {
            let named = rows.into_iter().filter_map(|row| Some((row.name?, row.domid)));
            named.map(|(name, domid)| Candidate::new(name, format!("domain {domid}"))).collect()
        }
        Reply::Vms(rows) => {
            rows.into_iter().map(|row| Candidate::new(row.name, row.state)).collect()
        }
        Reply::Srs(rows) => {
            rows.into_iter().map(|row| Candidate::new(row.name, row.kind)).collect()
        }
        Reply::Vdis(list) => {
            let name = |row: &api::VdiRow| format!("{}:{}", row.sr, row.name);
            list.vdis.iter().map(|row| Candidate::new(name(row), "disk")).collect()
        }
        Reply::Images(rows) => {
            rows.into_iter().map(|row| Candidate::new(row.name, row.origin)).collect()
        }
        Reply::Checkpoints(rows) => {
            let word = |row: &api::CheckpointRow| match words {
                Words::AllCheckpoints => format!("{}:{}", row.vm, row.name),
                _ => row.name.clone(),
            };
            rows.iter().map(|row| Candidate::new(word(row), "checkpoint")).collect()
        }
        Reply::Blocks(rows) => {
            rows.iter().map(|row| Candidate::new(row.vdev.to_string(), "disk")).collect()
        }
        Reply::Networks(rows) => {
            rows.into_iter().map(|row| Candidate::new(row.devid.to_string(), row.mac)).collect()
        }
        Reply::Pools(rows) => {
            let named = rows.into_iter().filter_map(|row| Some((row.name?, row.id)));
            named.map(|(name, id)| Candidate::new(name, format!("pool {id}"))).collect()
        }
        Reply::Peers(rows) => {
            rows.into_iter().map(|row| Candidate::new(row.name, row.address)).collect()
        }
        _ => Vec::new(),
    }
}

/// The script that makes a shell ask.
pub(super) fn script(shell: &str) -> Option<&'static str> {
    match shell {
        "bash" => Some(BASH),
        "zsh" => Some(ZSH),
        "fish" => Some(FISH),
        _ => None,
    }
}

const BASH: &str = r#"# Completion of xy for bash: source it, or install it as /usr/share/bash-completion/completions/xy.
_xy() {
    local line word IFS=$'\n' begin=${COMP_LINE:0:COMP_POINT} colon=
    # A word with a colon is several for bash.
    local words
    IFS=$' \t\n' read -r -a words <<<"$begin"
    [[ $begin == *[[:space:]] ]] && words+=('')
    word=${words[${#words[@]} - 1]}
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && colon=${word%"${word##*:}"}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$word")
        else
            line=${line%%$'\t'*}
            COMPREPLY+=("${line#"$colon"}")
        fi
    done < <(xy complete -- "${words[@]:1}" 2>/dev/null)
}
complete -F _xy xy
"#;

const ZSH: &str = r#"#compdef xy
# Completion of xy for zsh: install it as _xy in a folder of $fpath.
_xy() {
    local line
    local -a words_found described
    for line in "${(@f)$(xy complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            :files) _files ;;
            *)
                words_found+=("${line%%$'\t'*}")
                described+=("${line%%$'\t'*}  ${line#*$'\t'}")
                ;;
        esac
    done
    (( $#words_found )) && compadd -d described -a words_found
}
if [ "$funcstack[1]" = _xy ]; then _xy "$@"; else compdef _xy xy; fi
"#;

const FISH: &str = r#"# Completion of xy for fish: install it as xy.fish in a folder of $fish_complete_path.
function __xy_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (xy complete -- $words[2..-1] 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c xy -f -a '(__xy_complete)'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Place {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (last, before) = words.split_last().unwrap();
        place(before, last)
    }

    fn words(line: &str) -> Words {
        match of(line) {
            Place::Words(words, _) => words,
            Place::Candidates(all) => panic!("{line}: {all:?}"),
        }
    }

    #[test]
    fn each_place_of_a_command_has_words_of_its_kind() {
        for (line, expected) in [
            ("create ", Words::Files),
            ("create -f ", Words::Files),
            ("shutdown ", Words::Domains),
            ("shutdown -w a ", Words::Domains),
            ("-v shutdown ", Words::Domains),
            ("start ", Words::Vms),
            ("domid ", Words::Domains),
            ("domid a ", Words::Nothing),
            ("save ", Words::Domains),
            ("save a ", Words::Files),
            ("restore ", Words::Files),
            ("migrate a ", Words::Peers),
            ("migrate -C ", Words::Files),
            ("migrate -C f a ", Words::Peers),
            ("block-detach a ", Words::Disks),
            ("network-detach a ", Words::Vifs),
            ("revert a ", Words::Checkpoints),
            ("clone ", Words::AllCheckpoints),
            ("vdi-destroy ", Words::Vdis),
            ("vdi-list ", Words::Srs),
            ("vdi-list a ", Words::Srs),
            ("completion ", Words::Shells),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
        assert_eq!(of("block-detach a "), Place::Words(Words::Disks, Some("a".to_owned())));
    }

    #[test]
    fn commands_and_options_come_from_the_tables() {
        let found = |line: &str| match of(line) {
            Place::Candidates(all) => all.into_iter().map(|it| it.word).collect::<Vec<_>>(),
            Place::Words(words, _) => panic!("{line}: {words:?}"),
        };
        assert_eq!(found("").len(), COMMANDS.len());
        assert!(found("peer ").contains(&"check".to_owned()));
        assert_eq!(found("shutdown -"), ["--all", "-F", "--wait"]);
        assert!(found("nothing ").is_empty() && found("peer nothing ").is_empty());
    }

    /// The names of places in usage lines are the only ones that are known here.
    #[test]
    fn a_usage_line_has_no_more_places_than_operands() {
        for command in COMMANDS.iter().chain(GROUPS.iter().flat_map(|group| group.commands)) {
            let places = places_of(command.usage);
            let most = command.operands.1;
            assert!(places.len() <= most, "{}: {places:?}, {most}", command.name);
        }
    }

    #[test]
    fn names_of_domains_cannot_speak_to_the_terminal() {
        let mut text = String::new();
        let all = ["web1", "web\x1b[2J", "other"].map(|name| Candidate::new(name, "domain 3"));
        put(&mut text, &all, "we");
        assert_eq!(text, "web1\tdomain 3\n");
    }
}
