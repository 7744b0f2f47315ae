//! The daemon when its memory ends.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use xenstore::client::Nodes;

use crate::process::Daemon;

#[test]
fn what_was_answered_before_an_allocation_failed_is_there_after_the_restart() {
    let mut daemon = Daemon::start("memory", &[]);
    let size = std::fs::read_to_string(format!("/proc/{}/statm", daemon.id())).unwrap();
    let pages: u64 = size.split(' ').next().unwrap().parse().unwrap();
    for more in [1_u64 << 20, 6 << 20, 24 << 20] {
        let most = Some(pages * 4096 + more);
        let process = i32::try_from(daemon.id()).unwrap();
        let limit = Rlimit { current: most, maximum: None };
        prlimit(Pid::from_raw(process), Resource::As, limit).unwrap();
        let mut client = daemon.client();
        let value = [b'v'; 3000];
        let mut written = 0;
        while client.write(&format!("/{more}/{written}"), &value).is_ok() {
            written += 1;
            assert!(written < 50_000, "the limit is not one");
        }
        daemon.wait_for_end();
        daemon.restart(&[]);
        let mut client = daemon.client();
        for index in 0..written {
            let read = client.read(&format!("/{more}/{index}"));
            assert!(
                read.is_ok_and(|it| it == value),
                "{index} of {written} with {more} bytes more"
            );
        }
        assert!(written > 0, "{more}");
    }
}
