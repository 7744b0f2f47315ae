//! Who is at the other end of a unix socket.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::HostError;

/// Most supplementary groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// The supplementary groups that the peer had when it connected, by number.
///
/// # Errors
/// The kernel's: this is no unix socket, or has no peer.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, HostError> {
    let mut groups = vec![0u32; 64];
    loop {
        let size = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(size).expect("a bounded number of groups");
        // SAFETY: the descriptor is open for as long as `socket` is borrowed; the kernel writes at most `length` bytes to
        // the buffer, which has so many, and the length.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).unwrap_or_default() / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        // There are more: the kernel says how many.
        if error == libc::ERANGE && count > groups.len() && count <= GROUPS_MAX {
            groups.resize(count, 0);
        } else {
            return Err(HostError::new(
                "cannot ask for the groups of a client",
                Errno::from_raw_os_error(error),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_the_groups_that_this_process_has() {
        let (one, _other) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut own: Vec<u32> = line.split_whitespace().map(|it| it.parse().unwrap()).collect();
        let mut groups = peer_groups(&one).unwrap();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_groups(&file).is_err());
    }
}
