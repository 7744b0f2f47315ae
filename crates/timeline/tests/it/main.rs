use expect_test::expect;
use timeline::{Nanoseconds, Outcome, Span, Timeline, chrome, svg, text};

fn span(track: &str, name: &str, times: [u64; 3], waited_for: Option<&str>) -> Span {
    let [ready_ns, start_ns, end_ns] = times.map(|ms| ms * 1_000_000);
    Span {
        track: track.to_owned(),
        name: name.to_owned(),
        kind: name.split(' ').next().unwrap_or_default().to_owned(),
        ready_ns,
        start_ns,
        end_ns,
        waited_for: waited_for.map(str::to_owned),
        outcome: Outcome::Ended,
    }
}

fn two_vms() -> Timeline {
    let mut failed = span("web2", "build", [30, 40, 50], None);
    failed.outcome = Outcome::Failed;
    let spans = vec![
        span("web1", "attach disk 0", [10, 10, 60], None),
        span("web1", "attach disk 1", [10, 60, 110], Some("a place of SR fast")),
        span("web1", "build", [10, 10, 20], None),
        failed,
    ];
    Timeline { title: "start <web1> & web2".to_owned(), spans }
}

#[test]
fn text_shows_waiting_running_and_failed_spans() {
    expect![[r#"
        start <web1> & web2 (100.0 ms)
        step                       at    waited      took
        web1: build              0 us      0 us   10.0 ms |####                                            |
        web1: attach disk 0      0 us      0 us   50.0 ms |########################                        |
        web1: attach disk 1      0 us   50.0 ms   50.0 ms |........................########################| a place of SR fast
        web2: build           20.0 ms   10.0 ms   10.0 ms |         .....!!!!!                             |
    "#]]
    .assert_eq(&text(&two_vms()));
}

#[test]
fn spans_of_one_thread_of_the_trace_do_not_overlap() {
    let trace: serde_json::Value = serde_json::from_str(&chrome(&two_vms())).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let mut ends = std::collections::BTreeMap::new();
    let mut seen = 0;
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let thread = event["tid"].as_u64().unwrap();
        let start = event["ts"].as_f64().unwrap();
        let end = start + event["dur"].as_f64().unwrap();
        assert!(ends.get(&thread).is_none_or(|before| *before <= start), "{event}");
        ends.insert(thread, end);
        seen += 1;
    }
    assert_eq!(seen, 4);
    let names = events.iter().filter(|event| event["name"] == "thread_name").count();
    assert_eq!(names, ends.len());
    let waited = events.iter().find(|event| event["name"] == "attach disk 1").unwrap();
    assert_eq!(waited["args"]["waited_us"].as_f64(), Some(50_000.0));
    assert_eq!(waited["args"]["waited_for"], "a place of SR fast");
}

#[test]
fn svg_has_a_rectangle_for_each_span_and_escapes_names() {
    let picture = svg(&two_vms());
    assert!(picture.contains("start &lt;web1&gt; &amp; web2 (100.0 ms)"), "{picture}");
    // The background, a colour of the legend for each of two kinds, four spans.
    assert_eq!(picture.matches("<rect").count(), 1 + 2 + 4);
    assert_eq!(picture.matches("stroke=\"red\"").count(), 1);
    assert!(
        picture.contains("attach disk 1, 50.0 ms, after waiting 50.0 ms for a place of SR fast")
    );
}

#[test]
fn an_empty_timeline_can_be_drawn() {
    let empty = Timeline { title: "none".to_owned(), spans: Vec::new() };
    assert_eq!(text(&empty).lines().count(), 2);
    assert!(svg(&empty).ends_with("</svg>\n"));
    assert!(chrome(&empty).contains("traceEvents"));
}

fn height(times: impl Fn(u64) -> [u64; 3]) -> u32 {
    let spans = (0..5000).map(|n| span(&format!("vm{n}"), "build", times(n), None)).collect();
    let picture = svg(&Timeline { title: "storm".to_owned(), spans });
    assert_eq!(picture.matches("<title>").count(), 5000);
    let (_, height) = picture.split_once("height=\"").unwrap();
    height.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn many_rows_are_drawn_thinner() {
    let all_at_once = height(|n| [0, n, n + 5]);
    assert!(all_at_once <= 6000, "{all_at_once}");
    // Five at a time have five rows in all.
    let five_at_a_time = height(|n| [n, n, n + 5]);
    assert_eq!(five_at_a_time, 62 + 5 * 16 + 24);
}

#[test]
fn durations_are_printed_for_people() {
    let written: Vec<String> =
        [999, 850_000, 12_345_678, 4_567_000_000].map(|ns| Nanoseconds(ns).to_string()).into();
    assert_eq!(written, ["0 us", "850 us", "12.3 ms", "4.56 s"]);
}
