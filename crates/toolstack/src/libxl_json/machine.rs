//! How a guest's machine is run, in libxl's words.

use serde_json::{Map, Value};
use xen::DomainKind;

use super::read::{Node, Result};
use super::write::set;
use crate::config::{Altp2m, MachineOptions, Passthrough, TimerMode};

/// Sets the fields of `c_info`, of `b_info` and of its part for HVM domains that are not the default.
pub(super) fn put(
    options: &MachineOptions,
    create: &mut Value,
    info: &mut Map<String, Value>,
    own: &mut Map<String, Value>,
) {
    let default = MachineOptions::default();
    let MachineOptions {
        altp2m,
        altp2m_count,
        timer_mode,
        timers_aligned,
        pirqs,
        vpmu,
        trace_kib,
        out_of_sync,
        passthrough,
    } = *options;
    if !out_of_sync {
        create["oos"] = "False".into();
    }
    if passthrough != default.passthrough {
        create["passthrough"] = passthrough.as_str().into();
    }
    let differs = |it: TimerMode| (it != default.timer_mode).then(|| it.as_str());
    set(
        info,
        [
            ("altp2m", (altp2m != Altp2m::Disabled).then(|| altp2m.as_str())),
            ("timer_mode", differs(timer_mode)),
            ("vpmu", vpmu.then_some("True")),
        ],
    );
    set(
        info,
        [
            ("altp2m_count", altp2m_count.map(u32::from)),
            ("vmtrace_buf_kb", Some(trace_kib).filter(|kib| *kib != 0)),
        ],
    );
    set(
        own,
        [("vpt_align", (!timers_aligned).then_some("False")), ("pirq", pirqs.then_some("True"))],
    );
}

/// `own` is the part for the domain's kind, where some fields were in earlier releases.
pub(super) fn read(
    create: &Node<'_>,
    build: &Node<'_>,
    own: &Node<'_>,
    kind: DomainKind,
) -> Result<MachineOptions> {
    let default = MachineOptions::default();
    let oos = create.flag("oos")?.unwrap_or(default.out_of_sync);
    let options = MachineOptions {
        vpmu: build.flag("vpmu")? == Some(true),
        passthrough: create
            .choice("passthrough", &Passthrough::ALL, Passthrough::as_str)?
            .unwrap_or_default(),
        ..default
    };
    if kind == DomainKind::Pv {
        return Ok(options);
    }
    // Numbers that libxl found, in place of none.
    const COUNTS_USUAL: [u16; 2] = [0, 10];
    let count = build.narrow("altp2m_count")?;
    let altp2m = match build.choice("altp2m", &Altp2m::ALL, Altp2m::as_str)?.unwrap_or_default() {
        Altp2m::Disabled if own.flag("altp2m")? == Some(true) => Altp2m::Mixed,
        mode => mode,
    };
    let timer = |node: &Node<'_>| match node.text("timer_mode")? {
        Some("unknown") => Ok(None),
        _ => node.choice("timer_mode", &TimerMode::ALL, TimerMode::as_str),
    };
    let is_hvm = kind == DomainKind::Hvm;
    Ok(MachineOptions {
        altp2m,
        altp2m_count: count.filter(|it| !COUNTS_USUAL.contains(it)),
        timer_mode: timer(build)?.or(timer(own)?).unwrap_or_default(),
        timers_aligned: !is_hvm || own.flag("vpt_align")? != Some(false),
        pirqs: is_hvm && own.flag("pirq")? == Some(true),
        trace_kib: build.narrow("vmtrace_buf_kb")?.unwrap_or_default(),
        out_of_sync: oos,
        ..options
    })
}
