//! SRs implemented by an external program: it is kept running and receives requests as lines of
//! JSON.
//!
//! `docs/storage.md` describes the protocol. If the program exits or does not answer in time, that
//! request fails; the next one restarts it.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Driver, Place, Result, Source};
use crate::error::Naming as _;
use crate::{Access, BlockDevice, Command, Space, StorageError, Vdi, name};

/// Default time limit of an answer (setting `timeout`): longest for calls that may copy a whole
/// VDI.
const CALL_SECONDS: u64 = 60;
const COPY_SECONDS: u64 = 3600;

pub(super) struct Program;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Ok(Value),
    Error(String),
}

#[derive(Deserialize)]
struct SpaceAnswer {
    bytes: u64,
    free_bytes: u64,
}

#[derive(Deserialize)]
struct VdiAnswer {
    name: String,
    bytes: u64,
    #[serde(default)]
    used_bytes: Option<u64>,
    #[serde(default)]
    snapshot_of: Option<String>,
}

/// One call; `more` holds its arguments besides the SR.
fn call(place: &mut Place<'_>, call: &str, seconds: u64, more: Value) -> Result<Value> {
    let mut request = json!({
        "call": call,
        "sr": { "name": place.sr.name, "config": place.sr.config },
    });
    if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
        request.extend(more);
    }
    let object = match request.get("vdi").and_then(Value::as_str) {
        Some(vdi) => place.name(vdi),
        None => place.sr.name.clone(),
    };
    let program = place.sr.path("program")?;
    // A process for each SR: a hanging one does not block others.
    let command = Command::new(&program, &[&place.sr.name], seconds);
    let line = place.system.converse(&command, &request.to_string()).of(&object)?;
    match serde_json::from_str(&line) {
        Ok(Answer::Ok(value)) => Ok(value),
        Ok(Answer::Error(words)) => Err(StorageError::refused(format!("{object}: {words}"))),
        Err(error) => Err(misunderstood(&object, call, error)),
    }
}

fn misunderstood(object: &str, call: &str, error: impl std::fmt::Display) -> StorageError {
    StorageError::refused(format!("{object}: the driver's answer to {call}: {error}"))
}

/// Time limit of this SR's driver for calls that do not copy.
fn call_seconds(place: &Place<'_>) -> Result<u64> {
    let Some(text) = place.sr.config.get("timeout") else { return Ok(CALL_SECONDS) };
    let seconds = text.parse().ok().filter(|seconds| (1..=COPY_SECONDS).contains(seconds));
    seconds.ok_or_else(|| {
        StorageError::refused(format!(
            "{}: timeout={text:?}: expected seconds, from 1 to {COPY_SECONDS}",
            place.sr.name
        ))
    })
}

fn short_call(place: &mut Place<'_>, name: &str, more: Value) -> Result<Value> {
    let seconds = call_seconds(place)?;
    call(place, name, seconds, more)
}

fn done(place: &mut Place<'_>, name: &str, more: Value) -> Result<()> {
    short_call(place, name, more).map(drop)
}

fn copied(place: &mut Place<'_>, name: &str, from: &Vdi, to: &str, source: Source) -> Result<()> {
    let written = source == Source::Written;
    call(place, name, COPY_SECONDS, json!({ "vdi": from.name, "to": to, "written": written }))
        .map(drop)
}

impl Driver for Program {
    fn create(&self, place: &mut Place<'_>) -> Result<()> {
        done(place, "create", json!({}))
    }

    fn connect(&self, place: &mut Place<'_>) -> Result<()> {
        done(place, "connect", json!({}))
    }

    fn disconnect(&self, place: &mut Place<'_>) -> Result<()> {
        done(place, "disconnect", json!({}))
    }

    fn destroy(&self, place: &mut Place<'_>) -> Result<()> {
        done(place, "destroy", json!({}))
    }

    fn space(&self, place: &mut Place<'_>) -> Result<Space> {
        let value = short_call(place, "space", json!({}))?;
        let SpaceAnswer { bytes, free_bytes } = serde_json::from_value(value)
            .map_err(|error| misunderstood(&place.sr.name, "space", error))?;
        Ok(Space { bytes, free_bytes })
    }

    fn scan(&self, place: &mut Place<'_>) -> Result<Vec<Vdi>> {
        let value = short_call(place, "scan", json!({}))?;
        let found: Vec<VdiAnswer> = serde_json::from_value(value)
            .map_err(|error| misunderstood(&place.sr.name, "scan", error))?;
        // Names that are not valid VDI names are ignored.
        let known = found.into_iter().filter(|it| name::is_vdi(&it.name));
        let vdi = |it: VdiAnswer| Vdi {
            name: it.name,
            bytes: it.bytes,
            used_bytes: it.used_bytes,
            snapshot_of: it.snapshot_of,
        };
        Ok(known.map(vdi).collect())
    }

    fn create_vdi(&self, place: &mut Place<'_>, vdi: &str, bytes: u64) -> Result<()> {
        call(place, "create-vdi", COPY_SECONDS, json!({ "vdi": vdi, "bytes": bytes })).map(drop)
    }

    fn destroy_vdi(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        done(place, "destroy-vdi", json!({ "vdi": vdi }))
    }

    fn grow_vdi(
        &self,
        place: &mut Place<'_>,
        vdi: &Vdi,
        bytes: u64,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        let device = device.map(|device| device.path.as_str());
        let more = json!({ "vdi": vdi.name, "bytes": bytes, "device": device });
        call(place, "grow-vdi", COPY_SECONDS, more).map(drop)
    }

    fn snapshot_vdi(
        &self,
        place: &mut Place<'_>,
        from: &Vdi,
        to: &str,
        source: Source,
    ) -> Result<()> {
        copied(place, "snapshot-vdi", from, to, source)
    }

    fn clone_vdi(&self, place: &mut Place<'_>, from: &Vdi, to: &str, source: Source) -> Result<()> {
        copied(place, "clone-vdi", from, to, source)
    }

    fn attach(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<()> {
        done(place, "attach", json!({ "vdi": vdi, "access": access.as_str() }))
    }

    fn activate(&self, place: &mut Place<'_>, vdi: &str, access: Access) -> Result<BlockDevice> {
        let more = json!({ "vdi": vdi, "access": access.as_str() });
        let value = short_call(place, "activate", more)?;
        let object = place.name(vdi);
        let path: String = serde_json::from_value(value)
            .map_err(|error| misunderstood(&object, "activate", error))?;
        place.block_device(&object, path)
    }

    fn deactivate(
        &self,
        place: &mut Place<'_>,
        vdi: &str,
        device: Option<&BlockDevice>,
    ) -> Result<()> {
        let device = device.map(|device| device.path.as_str());
        done(place, "deactivate", json!({ "vdi": vdi, "device": device }))
    }

    fn detach(&self, place: &mut Place<'_>, vdi: &str) -> Result<()> {
        done(place, "detach", json!({ "vdi": vdi }))
    }
}
