//! CPUs that never go to sleep while something is measured.
//!
//! Where the machine is itself a guest, waking a CPU is its hypervisor's work and takes as long as ten
//! requests. A server that is done before the driver asks again pays that for each request, a slow one
//! never does: without this the figures say how the machine wakes, and the fastest server looks worst. So
//! each CPU has something to do that gives way to anything else.

use std::process::{Child, Command, Stdio};

/// Ends by itself when the driver is gone.
const LOOP: &str =
    "while [ -d /proc/$0 ]; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";

/// Keeps the CPUs busy until it is dropped.
#[derive(Debug)]
pub(super) struct Awake(Vec<Child>);

impl Awake {
    /// What does not start here is left out: then a CPU sleeps, as it does without.
    pub(super) fn keep(cpus: usize) -> Self {
        let start = |cpu: usize| {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "taskset", "--cpu-list", &cpu.to_string()]);
            command.args(["sh", "-c", LOOP, &std::process::id().to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().ok()
        };
        Self((0..cpus).filter_map(start).collect())
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}
