//! Timeouts for calls that may hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use storage::HostError;

/// Most hanging threads. With that many, file systems are lost permanently.
const HUNG_MAX: usize = 64;

/// Whether the call was abandoned: then nothing further may be done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    pub(crate) fn is_so(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Undoes a result that arrives after the timeout.
pub(crate) struct Undo<T>(Box<dyn FnOnce(T) + Send>);

impl<T: 'static> Undo<T> {
    pub(crate) fn nothing() -> Self {
        Self::by(drop)
    }

    pub(crate) fn by(undo: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(undo))
    }
}

/// Counts the threads that hang.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    hung: Arc<AtomicUsize>,
}

impl Bounded {
    /// Runs `operation` on its own thread and waits for it, at most for `time`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        time: Duration,
        operation: impl FnOnce(&Abandoned) -> Result<T, HostError> + Send + 'static,
        undo: Undo<T>,
    ) -> Result<T, HostError> {
        if self.hung.load(Ordering::Acquire) >= HUNG_MAX {
            return Err(HostError::Refused(format!(
                "{HUNG_MAX} calls to file systems that do not answer are waiting already"
            )));
        }
        let abandoned = Abandoned::default();
        // A rendezvous channel: either we take the result or the thread still has it.
        let (result, results) = mpsc::sync_channel(0);
        let (seen, hung) = (abandoned.clone(), Arc::clone(&self.hung));
        let (left, staying) = mpsc::channel::<()>();
        thread::Builder::new()
            .name("file".to_owned())
            .spawn(move || {
                if let Err(mpsc::SendError(Ok(unwanted))) = result.send(operation(&seen)) {
                    undo.0(unwanted);
                }
                // Counted as hung once abandoned; a message confirms the count.
                if seen.is_so() {
                    let _counted = staying.recv();
                    hung.fetch_sub(1, Ordering::AcqRel);
                }
            })
            .map_err(|error| HostError::Refused(format!("no thread for a file: {error}")))?;
        match results.recv_timeout(time) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(HostError::Refused("the call to a file system failed".to_owned()))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                abandoned.0.store(true, Ordering::Release);
                self.hung.fetch_add(1, Ordering::AcqRel);
                drop(results);
                drop(left);
                Err(HostError::Refused(format!("no answer within {} s", time.as_secs_f32())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_come_back_is_left_and_its_result_taken_back() {
        let bounded = Bounded::default();
        let (release, released) = mpsc::channel::<()>();
        let (undone, undoing) = mpsc::channel();
        let operation = move |abandoned: &Abandoned| {
            let _gone = released.recv();
            assert!(abandoned.is_so());
            Ok(7)
        };
        let undo = Undo::by(move |value| undone.send(value).expect("the test waits for it"));
        let error = bounded.run(Duration::from_millis(1), operation, undo).unwrap_err();
        assert_eq!(error.to_string(), "no answer within 0.001 s");
        assert_eq!(bounded.hung.load(Ordering::Acquire), 1);
        drop(release);
        assert_eq!(undoing.recv(), Ok(7));
        while bounded.hung.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_call_that_comes_back_is_not_taken_back() {
        let bounded = Bounded::default();
        let undo = Undo::by(|_| unreachable!("somebody has it"));
        assert_eq!(bounded.run(Duration::from_secs(600), |_| Ok(7), undo), Ok(7));
    }

    #[test]
    fn too_many_that_hang_are_not_added_to() {
        let bounded = Bounded::default();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        for _ in 0..HUNG_MAX {
            let released = Arc::clone(&released);
            let operation = move |_: &Abandoned| {
                let _gone = released.lock().map(|it| it.recv());
                Ok(())
            };
            assert!(bounded.run(Duration::from_millis(1), operation, Undo::nothing()).is_err());
        }
        let error = bounded.run(Duration::from_secs(600), |_| Ok(()), Undo::nothing()).unwrap_err();
        assert!(error.to_string().starts_with("64 calls to file systems"), "{error}");
        drop(release);
        while bounded.hung.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        assert_eq!(bounded.run(Duration::from_secs(600), |_| Ok(()), Undo::nothing()), Ok(()));
    }
}
