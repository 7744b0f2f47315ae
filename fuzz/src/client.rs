//! Answers of a store that lies.

use xen::{DomId, Errno, EvtchnPort, Gfn};
use xenstore::client::{Batch, Client, ClientError, ClientMachine, Nodes, Transport};
use xenstore::wire::MessageType;
use xenstore::{Access, Permission};

use crate::input::Input;

/// A store that says what the input says, whatever it is asked.
struct Liar<'a> {
    answers: Input<'a>,
    piece: usize,
    /// New connections that are left.
    lives: u8,
}

impl Transport for Liar<'_> {
    fn send(&mut self, _: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let bytes = self.answers.bytes(self.piece.min(into.len()));
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn reconnect(&mut self) -> Result<(), Errno> {
        self.lives = self.lives.checked_sub(1).ok_or(Errno::EOPNOTSUPP)?;
        Ok(())
    }
}

/// Asks for what the first bytes say, and hears the rest as answers.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    hear(Input::new(data));
    let mut questions = Input::new(input.bytes(8));
    let (piece, lives) = (1 + usize::from(questions.byte()), questions.byte() % 4);
    let liar = Liar { answers: input, piece, lives };
    let mut client =
        if questions.choice(2) == 0 { Client::new(liar) } else { Client::without_batches(liar) };
    while !questions.is_empty() {
        let question = questions.byte();
        // That it fails is expected of most; it must not do anything else.
        let _answer = ask(&mut client, question);
        while client.poll_event().is_some() {}
    }
}

/// The machine alone: every byte is an answer.
fn hear(mut input: Input<'_>) {
    let mut machine = ClientMachine::new();
    for &kind in MessageType::ALL {
        machine.request(kind, 0, &[b"/a\0"]).expect("it is short");
    }
    machine.sent(machine.outgoing().len());
    while !input.is_empty() {
        let bytes = input.string();
        if machine.handle_bytes(bytes).is_err() {
            break;
        }
    }
    while machine.poll_reply().is_some() {}
    while machine.poll_event().is_some() {}
}

fn ask(client: &mut Client<Liar<'_>>, question: u8) -> Result<(), ClientError> {
    let permissions = [Permission::new(Access::Read, DomId(1))];
    match question % 16 {
        0 => client.read_text("/a").map(drop),
        1 => client.directory("/a").map(drop),
        2 => client.get_perms("/a").map(drop),
        3 => client.set_perms("/a", &permissions),
        4 => client.watch("/a", "token"),
        5 => client.next_event().map(drop),
        6 => client.receive().map(drop),
        7 => client.introduce(DomId(1), Gfn(1), EvtchnPort(1)),
        8 => client.is_introduced(DomId(1)).map(drop),
        9 => client.control(&["check"]).map(drop),
        10 => client.read_optional("/a").map(drop),
        11 => client.transaction(|transaction| {
            transaction.directory("/a")?;
            transaction.write("/a", b"1")
        }),
        12 => client.commit(&batch()).map(drop),
        13 => {
            let mut reads = Batch::new();
            for path in ["/a", "/b", "/c"] {
                reads.read(path);
                reads.directory_generation(path);
            }
            let replies = client.run_at_once(&reads)?;
            for index in 0..reads.len() {
                let _refused = (replies.get_optional(index), replies.generation(index));
            }
            replies.all_ok()
        }
        14 => client.run(&batch())?.all_ok(),
        _ => client.get_domain_path(DomId(1)).map(drop),
    }
}

fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.guard_value("/a", "1");
    batch.guard_absent("/b");
    batch.write("/a", "2");
    batch.mkdir("/c");
    batch.rm("/d");
    batch
}
