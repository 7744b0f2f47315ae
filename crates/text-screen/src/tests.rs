//! Viewers and guests that are played.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::terminal::{COLUMNS, ROWS};

/// What the terminal shows, as text, without what is blank.
fn shown(screen: &TextScreen) -> String {
    let row = |row: usize| {
        let text: String = screen.terminal.row(row).iter().map(|cell| cell.text).collect();
        text.trim_end().to_owned()
    };
    let all: Vec<String> = (0..ROWS).map(row).collect();
    all.join("\n").trim_end().to_owned()
}

fn check(said: &str, expected: &Expect) {
    let mut screen = TextScreen::new();
    screen.guest_says(said.as_bytes());
    expected.assert_eq(&shown(&screen));
}

#[test]
fn a_terminal_shows_what_it_is_told() {
    check(
        "Xen\r\nlogin: ",
        &expect![[r#"
        Xen
        login:"#]],
    );
    check("one\x08\x08\x08two\tx", &expect!["two     x"]);
    check(
        "\x1b[2;3Hhere\x1b[H\x1b[1;31mtop\x1b[m",
        &expect![[r#"
        top
          here"#]],
    );
    check("gone\x1b[2J\x1b[Hnew", &expect!["new"]);
    check("abcdef\x1b[3D\x1b[P\x1b[@X", &expect!["abcXef"]);
    check("abcdef\x1b[3D\x1b[K", &expect!["abc"]);
    check("ä€\u{2500}\x1b]0;title\x07.", &expect!["ä€─."]);
    check("below\x1b[?1049hover\x1b[?1049l", &expect!["below"]);
    check(
        "a\r\nb\r\nc\x1b[1;2r\x1b[2;1H\nx",
        &expect![[r#"
        b
        x
        c"#]],
    );
    check(
        "a\r\nb\x1b[H\x1b[L0",
        &expect![[r#"
        0
        a
        b"#]],
    );
}

#[test]
fn a_full_line_goes_on_below_and_a_full_screen_moves_up() {
    let mut screen = TextScreen::new();
    let long = "x".repeat(COLUMNS + 1);
    screen.guest_says(long.as_bytes());
    assert_eq!(shown(&screen), format!("{}\nx", "x".repeat(COLUMNS)));
    for line in 0..ROWS {
        screen.guest_says(format!("\r\n{line}").as_bytes());
    }
    assert!(shown(&screen).starts_with("0\n1\n"));
}

#[test]
fn programs_are_told_where_the_cursor_is() {
    let mut screen = TextScreen::new();
    assert_eq!(screen.guest_says(b"\x1b[3;5H\x1b[6n").to_guest, b"\x1b[3;5R");
}

fn number(bytes: &mut &[u8]) -> u16 {
    let (first, rest) = bytes.split_at(2);
    *bytes = rest;
    u16::from_be_bytes([first[0], first[1]])
}

const WANTS_ALL: [u8; 10] = [3, 0, 0, 0, 0, 0, 2, 128, 1, 128];
const WANTS_MORE: [u8; 10] = [3, 1, 0, 0, 0, 0, 2, 128, 1, 128];

/// A viewer as noVNC is one.
fn started(screen: &mut TextScreen) {
    assert_eq!(screen.greeting(), b"RFB 003.008\n");
    assert_eq!(screen.viewer_says(b"RFB 003.008\n").unwrap().to_viewer, [1, 1]);
    assert_eq!(screen.viewer_says(&[1]).unwrap().to_viewer, [0; 4]);
    let init = screen.viewer_says(&[1]).unwrap().to_viewer;
    assert_eq!(init[..4], [2, 128, 1, 128], "640 by 384");
    assert!(init.ends_with(b"console"));
}

#[test]
fn a_viewer_sees_all_first_and_then_what_has_changed() {
    let mut screen = TextScreen::new();
    screen.guest_says(b"hello");
    started(&mut screen);
    let all = screen.viewer_says(&WANTS_ALL).unwrap().to_viewer;
    let mut rest = &all[2..];
    assert_eq!(usize::from(number(&mut rest)), ROWS);
    assert_eq!(all.len(), 4 + ROWS * (12 + COLUMNS * 8 * 16 * 4));
    assert_eq!(screen.viewer_says(&WANTS_MORE).unwrap(), Said::default(), "nothing is new");
    let row = screen.guest_says(b"!").to_viewer;
    assert_eq!(row.len(), 4 + 12 + COLUMNS * 8 * 16 * 4);
    assert_eq!(screen.guest_says(b"?"), Said::default(), "the viewer waits no more");
    assert!(!screen.viewer_says(&WANTS_MORE).unwrap().to_viewer.is_empty());
}

#[test]
fn a_viewer_that_can_gets_tiles() {
    let mut screen = TextScreen::new();
    started(&mut screen);
    screen.viewer_says(&[2, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 5]).unwrap();
    screen.guest_says(b"\x1b[?25l|");
    let all = screen.viewer_says(&WANTS_ALL).unwrap().to_viewer;
    // Of the first tile: its background, the colour of the text, and six bars, two dots high each.
    let tile = &all[4 + 12..][..10];
    expect!["[14, 0, 0, 0, 0, 170, 170, 170, 0, 6]"].assert_eq(&format!("{tile:?}"));
    assert!(all.len() < ROWS * (12 + 40 * 5) + 100, "{}", all.len());
}

#[test]
fn keys_come_to_the_guest_and_cut_text_does_not() {
    let mut screen = TextScreen::new();
    started(&mut screen);
    let cut = [6, 0, 0, 0, 0, 0, 0, 3, b'r', b'm', 4];
    assert_eq!(screen.viewer_says(&cut).unwrap(), Said::default());
    let key = [4, 1, 0, 0, 0, 0, 0xff, 0x0d];
    // In parts, as networks have it.
    assert_eq!(screen.viewer_says(&key[..3]).unwrap(), Said::default());
    assert_eq!(screen.viewer_says(&key[3..]).unwrap().to_guest, b"\r");
}

#[test]
fn old_viewers_are_understood_and_others_are_not() {
    let mut screen = TextScreen::new();
    assert_eq!(screen.viewer_says(b"RFB 003.003\n").unwrap().to_viewer, [0, 0, 0, 1]);
    let mut screen = TextScreen::new();
    assert!(screen.viewer_says(b"GET / HTTP/1.1\r\n").is_err());
    let mut screen = TextScreen::new();
    started(&mut screen);
    assert!(screen.viewer_says(&[9]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_are_too_strange(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"\x1b[;?0129HJKLMPSTr@X".to_vec())], 0..200),
        format in any::<[u8; 16]>(),
        is_tiled in any::<bool>(),
    ) {
        let mut screen = TextScreen::new();
        started(&mut screen);
        if is_tiled {
            screen.viewer_says(&[2, 0, 0, 1, 0, 0, 0, 5]).unwrap();
        }
        let mut said = vec![0; 4];
        said.extend(format);
        let _may_be_refused = screen.viewer_says(&said);
        let mut other = TextScreen::new();
        let _may_be_refused = other.viewer_says(&bytes);
        for part in bytes.chunks(20) {
            let _may_be_refused = screen.viewer_says(&WANTS_MORE);
            screen.guest_says(part);
        }
        shown(&screen);
    }
}
