//! Plans of single devices of a running domain: plug and unplug, CDs.

use super::{ConnectedBy, DeviceStep, OnFailure, Plan, Wait};
use crate::layout::{DeviceKind, DeviceRef};

/// Plugs a device into a running domain.
#[must_use]
pub fn plan_plug(device: DeviceRef, by: ConnectedBy) -> Plan {
    let mut plan = Plan::default();
    let ready = match device.kind {
        DeviceKind::Vbd | DeviceKind::Vif if by == ConnectedBy::DriverDomain => {
            Some(plan.add(DeviceStep::FindBackend(device), &[]))
        }
        DeviceKind::Vbd if by == ConnectedBy::Script => {
            Some(plan.add(DeviceStep::CheckDisk(device.devid), &[]))
        }
        DeviceKind::Vbd => Some(plan.add(DeviceStep::AttachDisk(device.devid), &[])),
        DeviceKind::Vif => Some(plan.add(DeviceStep::CheckBridge(device.devid), &[])),
        // QEMU runs.
        DeviceKind::Vkbd => None,
        DeviceKind::Pci => {
            // The guest must have taken note of those that it has.
            let connected = (device.devid > 0).then(|| plan.add(Wait::Connected(device), &[]));
            Some(plan.add(DeviceStep::CheckPci(device.devid), connected.as_slice()))
        }
        DeviceKind::Console | DeviceKind::Vfb | DeviceKind::NinePfs => {
            unreachable!("they are a VM's from its start on")
        }
    };
    let added = plan.add(DeviceStep::Add(device), ready.as_slice());
    add_plugged(&mut plan, device, by, &[added]);
    plan
}

/// The rest of a plug once the device's nodes are written. Each step is idempotent.
#[must_use]
pub fn plan_finish_plug(device: DeviceRef, by: ConnectedBy) -> Plan {
    let mut plan = Plan::default();
    add_plugged(&mut plan, device, by, &[]);
    plan
}

fn add_plugged(plan: &mut Plan, device: DeviceRef, by: ConnectedBy, after: &[usize]) {
    if device.kind == DeviceKind::Pci {
        let assigned = plan.add(DeviceStep::AssignPci(device.devid), after);
        let wait = match device.devid {
            // A guest that has had none may have no driver for them.
            0 => Wait::Backend(device),
            _ => Wait::Connected(device),
        };
        let seen = plan.add(wait, &[assigned]);
        plan.add(DeviceStep::Settle(device), &[seen]);
        return;
    }
    let seen = plan.add(Wait::Backend(device), after);
    if let Some(connect) = by.connect(device) {
        let connected = plan.add(connect, &[seen]);
        // A disk is complete once its backend has probed it; a vif may have missed its bridge.
        plan.add(DeviceStep::Settle(device), &[connected]);
    }
}

/// How a device is unplugged.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Unplug {
    /// The guest closes the device first, or refuses.
    Clean,
    /// Without asking.
    Forced,
}

/// The steps that unplug a device from a running domain.
#[must_use]
pub fn plan_unplug(device: DeviceRef, how: Unplug, is_attached: bool, by: ConnectedBy) -> Plan {
    let mut plan = Plan::default();
    match how {
        Unplug::Clean => {
            let connected = plan.add(Wait::Connected(device), &[]);
            let asked = plan.add(DeviceStep::AskToClose(device), &[connected]);
            let closed = plan.add(Wait::Consent(device), &[asked]);
            let removed = match by.disconnect(device) {
                None => plan.add(DeviceStep::Remove(device), &[closed]),
                Some(script) => {
                    let disconnected = plan.add(script, &[closed]);
                    // The guest has let go of it, whatever the script says.
                    plan.take_down(DeviceStep::Remove(device), &[disconnected])
                }
            };
            if is_attached {
                plan.add(DeviceStep::DetachDisk(device.devid), &[removed]);
            }
        }
        Unplug::Forced => {
            let closed = plan.take_down(DeviceStep::Close(device), &[]);
            let mut ended = plan.take_down(Wait::Closed(device), &[closed]);
            if let Some(script) = by.disconnect(device) {
                ended = plan.take_down(script, &[ended]);
            }
            let removed = plan.take_down(DeviceStep::Remove(device), &[ended]);
            if is_attached {
                plan.take_down(DeviceStep::DetachDisk(device.devid), &[removed]);
            }
        }
    }
    plan
}

/// The steps that change a CD, after checking that the new one is available.
#[must_use]
pub fn plan_swap(drive: DeviceRef, how: Unplug, is_attached: bool) -> Plan {
    let mut plan = Plan::default();
    let checked = plan.add(DeviceStep::CheckDisk(drive.devid), &[]);
    let gone = match how {
        Unplug::Clean => {
            let connected = plan.add(Wait::Connected(drive), &[checked]);
            let asked = plan.add(DeviceStep::AskToClose(drive), &[connected]);
            plan.add(Wait::Consent(drive), &[asked])
        }
        Unplug::Forced => {
            let closed = plan.add(DeviceStep::Close(drive), &[checked]);
            plan.add(Wait::Closed(drive), &[closed])
        }
    };
    let mut removed = plan.add(DeviceStep::Remove(drive), &[gone]);
    if is_attached {
        removed = plan.add(DeviceStep::DetachDisk(drive.devid), &[removed]);
    }
    let attached = plan.add(DeviceStep::AttachDisk(drive.devid), &[removed]);
    let added = plan.add(DeviceStep::Add(drive), &[attached]);
    add_plugged(&mut plan, drive, ConnectedBy::Us, &[added]);
    plan
}

/// The steps that put a CD into an empty drive that is emulated. Its PV device, which a guest that knows the emulated one
/// does not use, comes with it.
#[must_use]
pub fn plan_insert(drive: DeviceRef) -> Plan {
    let mut plan = Plan::default();
    add_cd(&mut plan, drive, &[]);
    plan
}

fn add_cd(plan: &mut Plan, drive: DeviceRef, after: &[usize]) {
    let attached = plan.add(DeviceStep::AttachDisk(drive.devid), after);
    let inserted = plan.add(DeviceStep::InsertCd(drive.devid), &[attached]);
    let added = plan.add(DeviceStep::Add(drive), &[inserted]);
    add_plugged(plan, drive, ConnectedBy::Us, &[added]);
}

/// The steps that take a CD from an emulated drive.
#[must_use]
pub fn plan_eject(drive: DeviceRef, how: Unplug, is_attached: bool) -> Plan {
    let on_failure = match how {
        Unplug::Clean => OnFailure::Stop,
        Unplug::Forced => OnFailure::GoOn,
    };
    let mut plan = Plan::default();
    take_cd(&mut plan, drive, (how, on_failure), is_attached, &[]);
    plan
}

fn take_cd(
    plan: &mut Plan,
    drive: DeviceRef,
    (how, on_failure): (Unplug, OnFailure),
    is_attached: bool,
    after: &[usize],
) -> usize {
    let ejected = plan.put(DeviceStep::EjectCd(drive.devid, how), after, on_failure);
    let closed = plan.put(DeviceStep::Close(drive), &[ejected], on_failure);
    let ended = plan.put(Wait::Closed(drive), &[closed], on_failure);
    let removed = plan.put(DeviceStep::Remove(drive), &[ended], on_failure);
    match is_attached {
        true => plan.put(DeviceStep::DetachDisk(drive.devid), &[removed], on_failure),
        false => removed,
    }
}

/// The steps that change a CD in an emulated drive, after checking that the new one is available.
#[must_use]
pub fn plan_change(drive: DeviceRef, how: Unplug, is_attached: bool) -> Plan {
    let mut plan = Plan::default();
    let checked = plan.add(DeviceStep::CheckDisk(drive.devid), &[]);
    let gone = take_cd(&mut plan, drive, (how, OnFailure::Stop), is_attached, &[checked]);
    add_cd(&mut plan, drive, &[gone]);
    plan
}

/// The steps that undo a failed [`plan_insert`].
#[must_use]
pub fn plan_undo_insert(drive: DeviceRef, is_added: bool, is_attached: bool) -> Plan {
    if is_added {
        return plan_eject(drive, Unplug::Forced, is_attached);
    }
    let mut plan = Plan::default();
    if is_attached {
        let ejected = plan.take_down(DeviceStep::EjectCd(drive.devid, Unplug::Forced), &[]);
        plan.take_down(DeviceStep::DetachDisk(drive.devid), &[ejected]);
    }
    plan
}

/// The steps that undo a failed plug.
#[must_use]
pub fn plan_undo_plug(
    device: DeviceRef,
    is_added: bool,
    is_attached: bool,
    by: ConnectedBy,
) -> Plan {
    if is_added {
        return plan_unplug(device, Unplug::Forced, is_attached, by);
    }
    let mut plan = Plan::default();
    if is_attached {
        plan.take_down(DeviceStep::DetachDisk(device.devid), &[]);
    }
    plan
}
