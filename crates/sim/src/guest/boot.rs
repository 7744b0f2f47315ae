//! A guest's boot: checks what the builder left, as a kernel would.
//!
//! It uses only what the domain itself can see: registers, page tables and memory. Any error
//! crashes the guest, as on a real Xen. Sources: `xen/include/public/xen.h` (start_info),
//! `arch-x86/hvm/start_info.h`, `arch-x86/xen-x86_64.h`.

use xen::{DomId, EvtchnPort, PAGE_BYTES, PAGE_SHIFT};

use super::image;
use super::memory::Kept;
use crate::Domain;
use crate::bytes::{index, u32_at, u64_at};
use crate::machine::{Channel, SimXen};

/// What a guest knows after boot.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    pub(crate) cmdline: String,
    /// Machine frames of its two rings.
    pub(crate) store_mfn: u64,
    pub(crate) console_mfn: u64,
    pub(crate) store_port: EvtchnPort,
    pub(crate) console_port: EvtchnPort,
    /// Frames that the guest may use for its own rings: first and number.
    pub(crate) spare: (u64, u64),
    pub(crate) ramdisk_bytes: u64,
    pub(crate) vcpus_online: usize,
    /// Of a PV guest.
    pub(crate) pv: Option<PvPlaces>,
    /// It did not begin at the beginning: what it kept in its memory.
    pub(crate) woken: Option<Kept>,
}

/// Where a PV guest finds its own frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PvPlaces {
    pub(crate) start_info_mfn: u64,
    /// Top-level page table.
    pub(crate) root: u64,
    /// Virtual address of the p2m list.
    pub(crate) p2m: u64,
    pub(crate) pages: u64,
}

/// Why a guest cannot run.
pub(crate) type Crash = &'static str;

/// Bytes of the longest command line of a PV domain.
const CMDLINE_BYTES: usize = 1024;

/// Boots a domain that is about to run.
pub(crate) fn boot(xen: &SimXen, domid: DomId) -> Result<Boot, Crash> {
    let domain = xen.domain(domid).ok_or("no domain")?;
    let bsp = domain.vcpus.first().filter(|vcpu| vcpu.online).ok_or("vCPU 0 is not online")?;
    let boot = if domain.is_translated() {
        let cpu = bsp.hvm_context.as_deref().ok_or("vCPU 0 has no context")?;
        let machine = Pvh { xen, domid };
        if u64_at(cpu, 640) == image::LOAD_ADDRESS + image::WAKE {
            machine.wake(cpu)
        } else if domain.has_device_model() {
            machine.boot_hvm(cpu)
        } else {
            machine.boot(cpu)
        }
    } else {
        let context = bsp.context.as_deref().ok_or("vCPU 0 has no context")?;
        Pv { xen, domid, root: u64_at(context, 5008) >> PAGE_SHIFT }.boot(context)
    }?;
    for port in [boot.store_port, boot.console_port] {
        match xen.channel(domid, port) {
            Some(Channel::Unbound { .. } | Channel::Interdomain { .. }) => {}
            _ => return Err("the store's or the console's event channel is no such thing"),
        }
    }
    Ok(boot)
}

pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Checks the kernel's own pages, read by the page at an offset from its first.
fn check_kernel(
    read: impl Fn(u64) -> Option<[u8; PAGE_BYTES]>,
    hypercall_page: HypercallPage,
) -> Result<(), Crash> {
    let page = |number| read(number).ok_or("the kernel is not mapped in full");
    let first = page(0)?;
    if first[..16] != image::MARKER[..] {
        return Err("the entry point is not in the kernel");
    }
    let mut text = Vec::new();
    for number in 2..image::TEXT_PAGES {
        text.extend_from_slice(&page(number)?);
    }
    if image::digest(&text) != u64_at(&first, 16) {
        return Err("the kernel's text is damaged");
    }
    for number in image::TEXT_PAGES..image::TEXT_PAGES + image::BSS_PAGES {
        if page(number)?.iter().any(|&byte| byte != 0) {
            return Err("the kernel's bss is not zero");
        }
    }
    if hypercall_page == HypercallPage::Expected
        && page(image::HYPERCALL_PAGE)?[32..34] != [0xb8, 1]
    {
        return Err("the hypercall page is not filled");
    }
    Ok(())
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum HypercallPage {
    Expected,
    /// A PVH guest sets it up by itself.
    OwnBusiness,
}

struct Pv<'a> {
    xen: &'a SimXen,
    domid: DomId,
    root: u64,
}

impl Pv<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Crash> {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let mfn = self.xen.translate(self.root, at).ok_or("a page fault")?;
            let offset = index(at % PAGE_BYTES as u64);
            let here = (PAGE_BYTES - offset).min(into.len() - done);
            self.xen.frame_read(mfn, offset, &mut into[done..done + here]);
            done += here;
        }
        Ok(())
    }

    fn u64(&self, address: u64) -> Result<u64, Crash> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn owned(&self, mfn: u64) -> Result<u64, Crash> {
        let owner = self.xen.frame_owner(mfn);
        if owner == Some(self.domid) { Ok(mfn) } else { Err("a ring is not the domain's memory") }
    }

    /// Goes on where a guest called for a suspend, in another domain.
    fn wake(&self, context: &[u8]) -> Result<Boot, Crash> {
        let mut info = [0; 1168];
        let start_info = self.owned(u64_at(context, 616))?;
        self.xen.frame_read(start_info, 0, &mut info);
        let pages = u64_at(&info, 32);
        let own = self.u64(u64_at(&info, 104) + u64_at(context, 624) * 8)?;
        let mut page = [0; PAGE_BYTES];
        self.xen.frame_read(self.owned(own)?, 0, &mut page);
        let kept = Kept::decode(&page)?;
        let boot = self.read_start(&info, start_info, kept.cmdline.clone(), pages)?;
        Ok(Boot { woken: Some(kept), ..boot })
    }

    fn boot(&self, context: &[u8]) -> Result<Boot, Crash> {
        if u64_at(context, 648) == image::VIRT_BASE + image::LOAD_ADDRESS + image::WAKE {
            return self.wake(context);
        }
        let (rsi, rip, rsp) = (u64_at(context, 624), u64_at(context, 648), u64_at(context, 672));
        let (cs, ss) = (u64_at(context, 656) & 0xffff, u64_at(context, 680) & 0xffff);
        if cs & 3 != 3 || ss & 3 != 3 {
            return Err("the segments are not a PV kernel's");
        }
        self.u64(rsp.wrapping_sub(8)).map_err(|_| "there is no stack")?;
        let kernel = |page: u64| {
            let mut bytes = [0; PAGE_BYTES];
            self.read(rip + page * PAGE_BYTES as u64, &mut bytes).ok()?;
            Some(bytes)
        };
        check_kernel(kernel, HypercallPage::Expected)?;

        let mut info = [0; 1168];
        self.read(rsi, &mut info).map_err(|_| "rsi does not lead to start_info")?;
        let pages = u64_at(&info, 32);
        let cmdline = text(&info[128..128 + CMDLINE_BYTES]);
        let start_info = self.xen.translate(self.root, rsi).ok_or("a page fault")?;
        self.read_start(&info, start_info, cmdline, pages)
    }

    fn read_start(
        &self,
        info: &[u8],
        start_info_mfn: u64,
        cmdline: String,
        pages: u64,
    ) -> Result<Boot, Crash> {
        if !info.starts_with(b"xen-3") {
            return Err("start_info has no magic");
        }
        let domain = self.xen.domain(self.domid).ok_or("no domain")?;
        if pages != domain.pages_mapped() {
            return Err("start_info tells another memory size");
        }
        if u64_at(info, 40) != domain.shared_info << PAGE_SHIFT {
            return Err("start_info tells another shared info page");
        }
        let p2m = u64_at(info, 104);
        self.check_tables(info)?;
        self.check_p2m(p2m, pages)?;
        let (module, ramdisk_bytes) = (u64_at(info, 112), u64_at(info, 120));
        if ramdisk_bytes > 0 {
            self.u64(module).map_err(|_| "the ramdisk is not mapped")?;
        }
        Ok(Boot {
            cmdline,
            store_mfn: self.owned(u64_at(info, 56))?,
            console_mfn: self.owned(u64_at(info, 72))?,
            store_port: EvtchnPort(u32_at(info, 64)),
            console_port: EvtchnPort(u32_at(info, 80)),
            spare: spare(pages),
            ramdisk_bytes,
            vcpus_online: domain.vcpus.iter().filter(|vcpu| vcpu.online).count(),
            pv: Some(PvPlaces { start_info_mfn, root: self.root, p2m, pages }),
            woken: None,
        })
    }

    fn check_tables(&self, info: &[u8]) -> Result<(), Crash> {
        let (base, frames) = (u64_at(info, 88), u64_at(info, 96));
        if self.xen.translate(self.root, base) != Some(self.root) {
            return Err("pt_base is not the top-level table");
        }
        for table in 0..frames {
            self.xen
                .translate(self.root, base + table * PAGE_BYTES as u64)
                .ok_or("the page tables are not mapped")?;
        }
        Ok(())
    }

    /// Compares the p2m list with Xen's own.
    fn check_p2m(&self, list: u64, pages: u64) -> Result<(), Crash> {
        /// Small domains are checked completely, large ones at this many places.
        const CHECKS: u64 = 4096;
        let step = pages.div_ceil(CHECKS).max(1);
        let mut pfn = 0;
        while pfn < pages {
            let mfn = self.u64(list + pfn * 8).map_err(|_| "the p2m list is not mapped")?;
            let owned = self.xen.frame_owner(mfn) == Some(self.domid);
            if !owned || self.xen.pfn_of_mfn(mfn) != Some(pfn) {
                return Err("the p2m list is wrong");
            }
            pfn += step;
        }
        Ok(())
    }
}

/// A domain that starts in protected mode without paging.
pub(super) struct Pvh<'a> {
    pub(super) xen: &'a SimXen,
    pub(super) domid: DomId,
}

impl Pvh<'_> {
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Crash> {
        let mut done = 0;
        while done < into.len() {
            let at = address.checked_add(done as u64).ok_or("a page fault")?;
            let offset = index(at % PAGE_BYTES as u64);
            let here = (PAGE_BYTES - offset).min(into.len() - done);
            let there = &mut into[done..done + here];
            if !self.xen.guest_read(self.domid, at >> PAGE_SHIFT, offset, there) {
                return Err("a page fault");
            }
            done += here;
        }
        Ok(())
    }

    /// Goes on where a guest called for a suspend, in another domain.
    fn wake(&self, cpu: &[u8]) -> Result<Boot, Crash> {
        let own = u64_at(cpu, 520);
        let mut page = [0; PAGE_BYTES];
        self.read(own << PAGE_SHIFT, &mut page)?;
        let kept = Kept::decode(&page)?;
        // Its own page is the first of the spare ones.
        let boot = self.rings(kept.cmdline.clone(), 0, (own, kept.spare_pages))?;
        Ok(Boot { woken: Some(kept), ..boot })
    }

    fn boot(&self, cpu: &[u8]) -> Result<Boot, Crash> {
        let rbx = u64_at(cpu, 520);
        self.check_start(cpu)?;

        let mut info = [0; 56];
        self.read(rbx, &mut info).map_err(|_| "rbx does not lead to start_info")?;
        if u32_at(&info, 0) != 0x336e_c578 || u32_at(&info, 4) < 1 {
            return Err("start_info has no magic");
        }
        let pages = self.check_memory_map(&info)?;
        let cmdline = match u64_at(&info, 24) {
            0 => String::new(),
            address => self.text(address)?,
        };
        let mut ramdisk_bytes = 0;
        if u32_at(&info, 12) > 0 {
            let mut module = [0; 32];
            self.read(u64_at(&info, 16), &mut module)?;
            ramdisk_bytes = u64_at(&module, 8);
            self.read(u64_at(&module, 0), &mut [0]).map_err(|_| "the ramdisk is not there")?;
        }
        self.rings(cmdline, ramdisk_bytes, self.spare(pages))
    }

    /// Checks the processor's state and the kernel image.
    pub(super) fn check_start(&self, cpu: &[u8]) -> Result<(), Crash> {
        const PE: u64 = 1;
        const PG: u64 = 1 << 31;
        let rip = u64_at(cpu, 640);
        if u64_at(cpu, 656) & (PE | PG) != PE {
            return Err("the processor is not in flat protected mode");
        }
        for (limit, access) in [(768, 888), (772, 892), (776, 896), (788, 908)] {
            if u32_at(cpu, limit) != u32::MAX || u32_at(cpu, access) & 0x80 == 0 {
                return Err("a segment is not flat");
            }
        }
        let kernel = |page: u64| {
            let mut bytes = [0; PAGE_BYTES];
            self.read(rip + page * PAGE_BYTES as u64, &mut bytes).ok()?;
            Some(bytes)
        };
        check_kernel(kernel, HypercallPage::OwnBusiness)
    }

    /// Rings and ports from the domain's parameters.
    pub(super) fn rings(
        &self,
        cmdline: String,
        ramdisk_bytes: u64,
        spare: (u64, u64),
    ) -> Result<Boot, Crash> {
        let domain = self.xen.domain(self.domid).ok_or("no domain")?;
        let ring = |param| {
            domain.mfn_of_pfn(domain.param(param)).ok_or("a ring's parameter leads nowhere")
        };
        let port = |param| u32::try_from(domain.param(param)).map(EvtchnPort);
        Ok(Boot {
            cmdline,
            store_mfn: ring(1)?,
            console_mfn: ring(17)?,
            store_port: port(2).map_err(|_| "the store's port is no port")?,
            console_port: port(18).map_err(|_| "the console's port is no port")?,
            spare,
            ramdisk_bytes,
            vcpus_online: domain.vcpus.iter().filter(|vcpu| vcpu.online).count(),
            pv: None,
            woken: None,
        })
    }

    /// The last frames of low memory that it keeps, which no builder uses.
    pub(super) fn spare(&self, pages: u64) -> (u64, u64) {
        let kept = self.xen.domain(self.domid).map_or(u64::MAX, Domain::kept_end);
        spare(pages.min(kept))
    }

    fn text(&self, address: u64) -> Result<String, Crash> {
        let mut bytes = Vec::new();
        let mut byte = [0];
        for at in address.. {
            self.read(at, &mut byte)?;
            if byte == [0] || bytes.len() == PAGE_BYTES {
                break;
            }
            bytes.push(byte[0]);
        }
        Ok(text(&bytes))
    }

    /// The RAM from address 0, in pages: start_info's map must cover existing memory and agree with
    /// Xen's own map.
    fn check_memory_map(&self, info: &[u8]) -> Result<u64, Crash> {
        const RAM: u32 = 1;
        let (map, entries) = (u64_at(info, 40), u32_at(info, 48));
        let xens = &self.xen.domain(self.domid).ok_or("no domain")?.e820;
        if xens.len() != index(entries.into()) * 20 {
            return Err("start_info's memory map is not the one Xen knows");
        }
        let mut low_pages = 0;
        for (number, other) in (0..u64::from(entries)).zip(xens.chunks_exact(20)) {
            let mut entry = [0; 24];
            self.read(map + number * 24, &mut entry)?;
            if entry[..20] != *other {
                return Err("start_info's memory map is not the one Xen knows");
            }
            let (start, bytes) = (u64_at(&entry, 0), u64_at(&entry, 8));
            if u32_at(&entry, 16) != RAM || bytes == 0 {
                continue;
            }
            for address in [start, start + bytes - 1] {
                self.read(address, &mut [0]).map_err(|_| "the memory map tells of no memory")?;
            }
            if start == 0 {
                low_pages = bytes >> PAGE_SHIFT;
            }
        }
        if low_pages == 0 { Err("there is no memory at address 0") } else { Ok(low_pages) }
    }
}

/// The last frames of low memory, which no builder uses.
fn spare(pages: u64) -> (u64, u64) {
    let number = (pages / 8).min(64);
    (pages - number, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::guest::kernel_image;
    use crate::machine::{Machine, MachineConfig, Release, SimHypervisor};
    use xen::{CreateDomain, CreateOptions, DomainKind, EvtchnPeer, Uuid, Xen};
    use xen_build::{BuildConfig, Built, Channel as Backend, Channels, KernelImage, TscMode};

    fn machine(release: Release, order_max: u32) -> Machine {
        let config = MachineConfig {
            release,
            order_max,
            pages: 1 << 16,
            dom0_pages: 1 << 12,
            ..MachineConfig::default()
        };
        Machine::new(SimXen::new(config, Faults::default(), 42))
    }

    /// Builds a domain of 8 MiB with the project's own builder.
    fn build(machine: &Machine, kind: DomainKind, ramdisk: Option<&[u8]>) -> (DomId, Built) {
        let mut xen: Xen<SimHypervisor> = Xen::probe(machine.hypervisor()).unwrap();
        let wanted = CreateDomain {
            kind,
            handle: Uuid([9; 16]),
            vcpus_max: 2,
            evtchn_port_max: 1023,
            grant_frames_max: None,
            maptrack_frames_max: None,
            options: CreateOptions::default(),
        };
        let domid = xen.create_domain(&wanted).unwrap();
        xen.set_vcpus_max(domid, 2).unwrap();
        let peer = EvtchnPeer { owner: domid, remote: DomId::DOM0 };
        let (store, console) = (xen.alloc_unbound(peer).unwrap(), xen.alloc_unbound(peer).unwrap());
        let kernel = KernelImage::parse(&kernel_image()).unwrap();
        let config = BuildConfig {
            shimmed: None,
            kind,
            kernel: &kernel,
            ramdisk,
            cmdline: "sim.kind=linux two words",
            memory_pages: 2048,
            memory_pages_max: 2048,
            vcpus: 2,
            tsc_mode: TscMode::Default,
        };
        let channels = Channels {
            store: Backend { port: store, backend: DomId::DOM0 },
            console: Backend { port: console, backend: DomId::DOM0 },
        };
        let built = xen_build::build(&mut xen, domid, &config, &channels, &mut ()).unwrap();
        (domid, built)
    }

    fn check(kind: DomainKind) {
        for release in Release::ALL {
            for order_max in [18, 3] {
                let machine = machine(release, order_max);
                let (domid, built) = build(&machine, kind, Some(&[0x5a; 5000]));
                let xen = machine.get();
                let boot = boot(&xen, domid).unwrap();
                assert_eq!(boot.cmdline, "sim.kind=linux two words");
                assert_eq!(boot.ramdisk_bytes, 5000);
                assert_eq!(xen.mfn_of_gfn(domid, built.store_frame), Some(boot.store_mfn));
                assert_eq!(xen.mfn_of_gfn(domid, built.console_frame), Some(boot.console_mfn));
                assert_eq!((boot.store_port.0, boot.console_port.0), (1, 2));
            }
        }
    }

    #[test]
    fn a_built_pv_domain_boots_on_every_release() {
        check(DomainKind::Pv);
    }

    #[test]
    fn a_built_pvh_domain_boots_on_every_release() {
        check(DomainKind::Pvh);
    }

    #[test]
    fn a_guest_detects_a_damaged_start() {
        let machine = machine(Release::Xen4_17, 18);
        let (domid, built) = build(&machine, DomainKind::Pv, None);
        let root = {
            let xen = machine.get();
            let context = xen.domain(domid).unwrap().vcpus[0].context.clone().unwrap();
            u64_at(&context, 5008) >> PAGE_SHIFT
        };
        let spoil = |address: u64, what: Crash| {
            let mfn = machine.get().translate(root, address).unwrap();
            let offset = index(address % PAGE_BYTES as u64);
            machine.get_mut().frame_mut(mfn)[offset] ^= 0xff;
            assert_eq!(boot(&machine.get(), domid).unwrap_err(), what);
            machine.get_mut().frame_mut(mfn)[offset] ^= 0xff;
            assert!(boot(&machine.get(), domid).is_ok());
        };
        let page = PAGE_BYTES as u64;
        spoil(built.entry, "the entry point is not in the kernel");
        spoil(built.entry + 3 * page, "the kernel's text is damaged");
        spoil(built.entry + image::TEXT_PAGES * page + 9, "the kernel's bss is not zero");
        spoil(built.entry + page + 32, "the hypercall page is not filled");
    }
}
