//! The progress line on a terminal: finished and planned steps, and the current one.

use api::Progress;

use crate::session::one_line;

/// Characters of the bar.
const BAR_CHARS: u32 = 20;

/// One line of at most `chars_max` characters.
pub(crate) fn line(it: &Progress, chars_max: usize) -> String {
    let done = it.done.min(it.total);
    // Full only when all has ended.
    let full = (done * BAR_CHARS).checked_div(it.total).unwrap_or(0);
    let bar: String = (0..BAR_CHARS).map(|at| if at < full { '#' } else { '-' }).collect();
    let what = match (it.waits_for.as_str(), it.step.as_str()) {
        ("", step) => step.to_owned(),
        (waits_for, _) => format!("waits for {waits_for}"),
    };
    let text = one_line(&format!("{} [{bar}] {done}/{} {what}", it.vm, it.total));
    text.chars().take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(done: u32, total: u32, step: &str, waits_for: &str) -> Progress {
        let (step, waits_for) = (step.to_owned(), waits_for.to_owned());
        Progress { vm: "web".to_owned(), done, total, step, waits_for }
    }

    #[test]
    fn the_bar_is_full_only_when_all_has_ended() {
        let bar = |done, total| line(&progress(done, total, "x", ""), 80);
        assert_eq!(bar(0, 12), "web [--------------------] 0/12 x");
        assert_eq!(bar(11, 12), "web [##################--] 11/12 x");
        assert_eq!(bar(999, 1000), "web [###################-] 999/1000 x");
        assert_eq!(bar(12, 12), "web [####################] 12/12 x");
        assert_eq!(bar(0, 0), "web [--------------------] 0/0 x");
    }

    #[test]
    fn what_is_waited_for_is_said_as_far_as_there_is_room() {
        let it = progress(5, 12, "attach disk 51712", "build, await the backend of vif 0");
        assert_eq!(
            line(&it, 100),
            "web [########------------] 5/12 waits for build, await the backend of vif 0"
        );
        assert_eq!(line(&it, 40), "web [########------------] 5/12 waits fo");
        let hostile = progress(1, 2, "a\x1b[2Jb", "");
        assert_eq!(line(&hostile, 80), "web [##########----------] 1/2 a [2Jb");
    }
}
