//! What a client that is limited to some VMs is shown of a reply.

use api::{Reply, Trace};

use crate::tags::UUID_BYTES;

/// How messages name a disk's user: this, the VM's UUID, and the disk.
const OWNER: &str = "xylem/";

/// What may be shown of a reply to who may see the VMs that are permitted, by their UUIDs. Rows that do not say whose they are
/// were asked for by VM. `None` of a reply that is about others, or about the host.
#[must_use]
pub fn show(reply: Reply, permits: &dyn Fn(&str) -> bool) -> Option<Reply> {
    Some(match reply {
        reply @ (Reply::Done
        | Reply::Pong(_)
        | Reply::Domid(_)
        | Reply::Domname(_)
        | Reply::Blocks(_)
        | Reply::Networks(_)
        | Reply::Channels(_)
        | Reply::Keyboards(_)
        | Reply::Vcpus(_)
        | Reply::Pci(_)) => reply,
        Reply::Text(text) => Reply::Text(without_others(&text, permits)),
        Reply::Created(report) if permits(&report.uuid) => Reply::Created(report),
        Reply::Domains(mut rows) => {
            // Another toolstack's domain may have any UUID.
            rows.retain(|it| it.managed && permits(&it.uuid));
            Reply::Domains(rows)
        }
        Reply::Configs(mut rows) => {
            rows.retain(|it| permits(&it.config.c_info.uuid));
            Reply::Configs(rows)
        }
        Reply::Vms(mut rows) => {
            rows.retain(|it| permits(&it.uuid));
            Reply::Vms(rows)
        }
        Reply::Checkpoints(mut rows) => {
            rows.retain(|it| permits(&it.uuid));
            Reply::Checkpoints(rows)
        }
        Reply::Trace(trace) if permits(&trace.uuid) => Reply::Trace(trace_of(trace, permits)),
        Reply::Operations(mut operations) => {
            // They do not say whose they are: who sees some takes them from the live model.
            operations.rows.clear();
            Reply::Operations(operations)
        }
        Reply::Created(_)
        | Reply::Trace(_)
        | Reply::Checked(_)
        | Reply::Console(_)
        | Reply::Sched(_)
        | Reply::Srs(_)
        | Reply::Vdis(_)
        | Reply::Images(_)
        | Reply::StoreTree(_)
        | Reply::StoreValues(_)
        | Reply::StoreNames(_)
        | Reply::StoreQuota(_)
        | Reply::StoreStats(_)
        | Reply::Checkpointed { .. }
        | Reply::Info(_)
        | Reply::Topology(_)
        | Reply::NodeAffinity(_)
        | Reply::Boot(_)
        | Reply::Pools(_)
        | Reply::PsrHardware(_)
        | Reply::PsrSamples(_)
        | Reply::PsrShares(_)
        | Reply::Enforcing(_)
        | Reply::Defaults { .. }
        | Reply::Counters(_)
        | Reply::Activity(_)
        | Reply::Traffic(_)
        | Reply::Defined { .. }
        | Reply::PeerKey(_)
        | Reply::Peers(_)
        | Reply::PeerCheck(_)
        | Reply::StartedAll(_)
        | Reply::Changes(_)
        | Reply::Objects(_)
        | Reply::Limits(_) => return None,
    })
}

fn trace_of(mut trace: Trace, permits: &dyn Fn(&str) -> bool) -> Trace {
    let failure = trace.operation.failure.as_deref();
    trace.operation.failure = failure.map(|text| without_others(text, permits));
    trace
}

/// A message in which another VM that uses a disk is not named.
#[must_use]
pub fn without_others(text: &str, permits: &dyn Fn(&str) -> bool) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OWNER) {
        shown.push_str(before);
        match after.get(..UUID_BYTES).filter(|uuid| is_like_a_uuid(uuid) && !permits(uuid)) {
            Some(_) => {
                shown.push_str("another VM");
                let disk = |it: char| it == '/' || it.is_ascii_alphanumeric();
                rest = after[UUID_BYTES..].trim_start_matches(disk);
            }
            None => {
                shown.push_str(OWNER);
                rest = after;
            }
        }
    }
    shown + rest
}

fn is_like_a_uuid(text: &str) -> bool {
    text.bytes().all(|it| it == b'-' || it.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_does_not_name_another_vm_that_uses_a_disk() {
        let own = "00000000-0000-0000-0000-00000000000a";
        let other = "00000000-0000-0000-0000-00000000000b";
        let permits = |uuid: &str| uuid == own;
        let text = format!("a: is in use by xylem/{other}/xvda; xylem/{own}/xvdb, xylem/x xylem/");
        assert_eq!(
            without_others(&text, &permits),
            format!("a: is in use by another VM; xylem/{own}/xvdb, xylem/x xylem/")
        );
        assert_eq!(without_others("xylem/\u{fc}", &permits), "xylem/\u{fc}");
    }
}
