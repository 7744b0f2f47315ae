//! The confined parser as a process: its results, its privileges, and its exit.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use image_parser::{Limits, ParseError, Parser};
use xen_build::KernelImage;

/// The program that parses.
const PROGRAM: &str = env!("CARGO_BIN_EXE_image-parser");

fn parser() -> Parser {
    Parser::start(PROGRAM, [], Limits::default()).unwrap()
}

/// An anonymous file with these bytes.
fn file(bytes: &[u8]) -> File {
    use std::io::Seek as _;
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memory);
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// The smallest loadable ELF file: one segment and no notes.
fn elf() -> Vec<u8> {
    let mut file = vec![0; 64 + 56 + 16];
    file[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0");
    file[32] = 64;
    file[54] = 56;
    file[56] = 1;
    let header = &mut file[64..];
    header[0] = 1;
    for (offset, value) in [(8, 120_u64), (24, 0x10_0000), (32, 16), (40, 4096)] {
        header[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    file[120..].copy_from_slice(b"sixteen bytes...");
    file
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

#[test]
fn a_kernel_comes_back_as_it_would_have_been_parsed_here() {
    let parser = parser();
    let here = KernelImage::parse(&elf()).unwrap();
    let there = parser.parse(&file(&elf())).unwrap();
    assert_eq!(there.describe(), here.describe());
    assert_eq!(there.unpacked(), here.unpacked());
}

#[test]
fn what_is_wrong_with_an_image_is_said_in_the_same_words() {
    let parser = parser();
    for bytes in [&b""[..], b"#!/bin/sh\n", &elf()[..100], &elf()[..130]] {
        let here = KernelImage::parse(bytes).unwrap_err().to_string();
        let there = parser.parse(&file(bytes)).unwrap_err();
        assert!(matches!(there, ParseError::Image(_)), "{there:?}");
        assert_eq!(there.to_string(), here);
    }
}

#[test]
fn the_parser_holds_nothing_and_may_do_nothing() {
    let parser = parser();
    let pid = parser.spare().unwrap();
    let proc = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    // It confines itself asynchronously.
    let filtered = || proc("status").lines().any(|line| line == "Seccomp:\t2");
    while !filtered() {
        assert!(!proc("stat").contains(") Z "), "the parser has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = proc("status");
    let mut expected =
        vec!["NoNewPrivs:\t1", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"];
    if rustix::process::geteuid().is_root() {
        expected.extend(["Uid:\t65534\t65534\t65534\t65534", "CapBnd:\t0000000000000000"]);
    }
    for line in expected {
        assert!(status.lines().any(|it| it == line), "{line} is missing in\n{status}");
    }
    // Only root can see them, once the user has changed.
    if let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) {
        let mut numbers: Vec<_> =
            descriptors.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        numbers.sort();
        assert_eq!(numbers, ["0", "1", "2"]);
        let target = |number| std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
        assert!(target(0).to_str().unwrap().starts_with("socket:"));
        assert_eq!(
            (target(1).to_str(), target(2).to_str()),
            (Some("/dev/null"), Some("/dev/null"))
        );
    }
    // The checks have not disturbed it.
    parser.parse(&file(&elf())).unwrap();
}

#[test]
fn each_image_has_a_parser_of_its_own_and_a_dead_one_is_replaced() {
    let parser = parser();
    let first = parser.spare().unwrap();
    parser.parse(&file(&elf())).unwrap();
    let second = parser.spare().unwrap();
    assert_ne!(first, second);
    let pid = rustix::process::Pid::from_raw(second.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // Dead or dying.
    let parsed = parser.parse(&file(&elf()));
    assert!(matches!(parsed, Ok(_) | Err(ParseError::Ended { .. })), "{parsed:?}");
    parser.parse(&file(&elf())).unwrap();
}

#[test]
fn a_parser_that_crashes_fails_its_image_only() {
    let parser = Parser::start("/bin/sh", ["-c".into(), "kill -SEGV $$".into()], Limits::default());
    let error = parser.unwrap().parse(&file(&elf())).unwrap_err();
    assert!(error.to_string().starts_with("the parser ended with signal 11: "), "{error}");
}

#[test]
fn a_parser_that_goes_on_for_ever_is_stopped() {
    let limits = limits(|it| it.cpu = Duration::from_millis(50));
    let endless = ["-c".into(), "while :; do :; done".into()];
    let parser = Parser::start("/bin/sh", endless, limits).unwrap();
    let error = parser.parse(&file(&elf())).unwrap_err();
    assert!(matches!(error, ParseError::Slow { .. }), "{error:?}");
}

#[test]
fn a_parser_that_never_answers_is_stopped() {
    let limits = limits(|it| it.wall = Duration::from_millis(50));
    let parser = Parser::start("/bin/sleep", ["1000".into()], limits).unwrap();
    let error = parser.parse(&file(&elf())).unwrap_err();
    assert!(matches!(error, ParseError::Silent { .. }), "{error:?}");
}

#[test]
fn an_image_that_unpacks_to_more_than_there_is_memory_for_is_refused() {
    // 200 MiB are asked for in the trailer of a gzip file; the parser has 64.
    let mut bomb = b"\x1f\x8b\x08\0\0\0\0\0\0\0".to_vec();
    bomb.extend([0; 64]);
    bomb.extend((200_u32 << 20).to_le_bytes());
    let parser = Parser::start(PROGRAM, [], limits(|it| it.memory_mib = 64)).unwrap();
    let error = parser.parse(&file(&bomb)).unwrap_err();
    assert!(matches!(error, ParseError::Ended { memory_mib: 64, .. }), "{error:?}");
    parser.parse(&file(&elf())).unwrap();
}

#[test]
fn a_file_that_is_too_large_is_not_even_handed_over() {
    let parser = Parser::start(PROGRAM, [], limits(|it| it.file_bytes = 1 << 20)).unwrap();
    let error = parser.parse(&file(&vec![0; (1 << 20) + 1])).unwrap_err();
    assert_eq!(error.to_string(), "a file of 2 MiB; kernels of up to 1 MiB are read");
}

#[test]
fn its_processes_end_with_it_and_none_follows() {
    let parser = Parser::start("/bin/sleep", ["1000".into()], Limits::default()).unwrap();
    let spare = parser.spare().unwrap();
    std::thread::scope(|scope| {
        let parsing = scope.spawn(|| parser.parse(&file(&elf())));
        while parser.spare().is_none_or(|pid| pid == spare) {
            assert!(!parsing.is_finished(), "it waits for an answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        let second = parser.spare().unwrap();
        parser.end();
        assert!(!std::path::Path::new(&format!("/proc/{second}")).exists());
        assert!(parsing.join().unwrap().is_err());
    });
    assert!(parser.spare().is_none());
    assert!(matches!(parser.parse(&file(&elf())), Err(ParseError::Start(_))));
}

#[test]
fn a_program_that_is_none_cannot_be_started() {
    Parser::start("/nowhere", [], Limits::default()).unwrap_err();
}
