//! Who a client is, by what the kernel says of the other end of its connection.

use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use service::Role;
use toolstack::Asker;

/// The host's groups.
const GROUPS: &str = "/etc/group";

/// A client, and what it may do.
pub(crate) struct Who {
    pub(crate) asker: Asker,
    pub(crate) role: Role,
}

/// Who is at the other end; if it may do nothing here, why.
pub(crate) fn is_at(stream: &UnixStream) -> Result<Who, String> {
    let peer = socket_peercred(stream)
        .map_err(|error| format!("the kernel does not say who asks: {error}"))?;
    let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get());
    let asker = Asker { uid, pid };
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(Who { asker, role: Role::Admin });
    }
    let mut groups = xen_linux::peer_groups(stream).map_err(|error| error.to_string())?;
    groups.push(peer.gid.as_raw());
    let known = std::fs::read_to_string(GROUPS).unwrap_or_default();
    let role = role_of(&known, &groups).ok_or_else(|| {
        format!(
            "not permitted: uid {uid} is in none of the groups of Xylem; root can add it to {}",
            Role::Viewer.group()
        )
    })?;
    Ok(Who { asker, role })
}

/// The number of the group whose members have this role at least, if there is one.
#[must_use]
pub fn group(role: Role) -> Option<u32> {
    number(&std::fs::read_to_string(GROUPS).ok()?, role.group())
}

/// The number of a group in the text of `/etc/group`.
fn number(text: &str, group: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// The highest role of these groups.
fn role_of(text: &str, groups: &[u32]) -> Option<Role> {
    let has = |role: &Role| number(text, role.group()).is_some_and(|it| groups.contains(&it));
    Role::ALL.into_iter().filter(has).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "root:x:0:\nxylem-admin:x:903:eve\nxylem:x:901:alice,bob\nxylem-operator:x:902:\n\
                        broken\nxylem-old:x:904:\n";

    #[test]
    fn a_role_comes_from_the_highest_group() {
        for (groups, role) in [
            (&[][..], None),
            (&[0, 904], None),
            (&[901], Some(Role::Viewer)),
            (&[902], Some(Role::Operator)),
            (&[5, 902, 901], Some(Role::Operator)),
            (&[901, 903], Some(Role::Admin)),
        ] {
            assert_eq!(role_of(TEXT, groups), role, "{groups:?}");
        }
        assert_eq!(role_of("", &[0, 901]), None, "groups that do not exist have no members");
        assert_eq!(role_of("xylem:x::alice\nxylem:x:-1:\n", &[0]), None);
    }

    #[test]
    fn whoever_runs_the_daemon_is_its_admin() {
        let (one, _other) = UnixStream::pair().unwrap();
        let who = is_at(&one).unwrap();
        assert_eq!(who.role, Role::Admin);
        assert_eq!(who.asker.pid, i32::try_from(std::process::id()).unwrap());
    }
}
