//! `cpuid=` in both of xl's syntaxes: `"host,NAME=VALUE,..."`, and xend's list of registers bit by bit.
//!
//! Sources: xen `docs/man/xl.cfg.5.pod.in`, libxl's and libxc's reading of either.

use xen_build::{BitPolicy, CpuidOverride, CpuidRegister, MsrOverride, NO_SUBLEAF};

use super::cpu_features::{Field, Word, field, names};
use super::keys::nearest;
use super::shown;
use crate::config::{CpuidConfig, CpuidText};

/// What a register that nothing was said of yet is: the default policy's.
const DEFAULT_32: BitPolicy<u32> = BitPolicy { ones: 0, host: 0, default: u32::MAX };
const DEFAULT_64: BitPolicy<u64> = BitPolicy { ones: 0, host: 0, default: u64::MAX };

/// What bits are to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Bits {
    Number(u32),
    Host,
    Default,
}

/// `host,NAME=VALUE,...`
pub(super) fn parse_words(text: &str) -> Result<Option<CpuidConfig>, String> {
    let mut words = text.split(',').filter(|word| !word.is_empty());
    match words.next() {
        None => return Ok(None),
        Some("host") => {}
        Some(other) => return Err(format!("{}: the first word must be host", shown(other))),
    }
    let mut config = CpuidConfig::new(CpuidText::Words(text.to_owned()));
    for word in words {
        let bad = |problem: String| format!("{}: {problem}", shown(word));
        let (name, value) =
            word.split_once('=').ok_or_else(|| bad("expected NAME=VALUE".to_owned()))?;
        let field = field(name).ok_or_else(|| bad(unknown(name)))?;
        let bits = bits(value).ok_or_else(|| {
            bad("the value must be a number, x (default), k or s (host)".to_owned())
        })?;
        set(&mut config, name, field, bits).map_err(bad)?;
    }
    Ok(config.sets_anything().then_some(config))
}

fn unknown(name: &str) -> String {
    match nearest(name, names()) {
        Some(other) => format!("no CPU feature has this name; did you mean {other}?"),
        None => "no CPU feature has this name".to_owned(),
    }
}

fn bits(value: &str) -> Option<Bits> {
    match value {
        "x" => Some(Bits::Default),
        "k" | "s" => Some(Bits::Host),
        number => super::integer(number).and_then(|n| u32::try_from(n).ok()).map(Bits::Number),
    }
}

fn set(config: &mut CpuidConfig, name: &str, field: Field, bits: Bits) -> Result<(), String> {
    let Field { word, shift, bits: width } = field;
    if let Bits::Number(number) = bits
        && name != "family"
        && width < 32
        && number >> width != 0
    {
        return Err(format!("the value must fit into {width} bits"));
    }
    match (word, bits) {
        (Word::Msr(index, half), bits) => {
            set_msr(config, index, half * 32 + shift, bits);
        }
        (Word::Cpuid(leaf, subleaf, register), Bits::Number(number)) if name == "family" => {
            let (base, extended) = if number < 16 { (number, 0) } else { (15, number - 15) };
            if extended > 0xff {
                return Err("the family is at most 270".to_owned());
            }
            set_register(config, leaf, subleaf, register, 8, 4, Bits::Number(base));
            set_register(config, leaf, subleaf, register, 20, 8, Bits::Number(extended));
        }
        (Word::Cpuid(leaf, subleaf, register), bits) if name == "model" => {
            let part = |shift: u32| match bits {
                Bits::Number(number) => Bits::Number(number >> shift & 0xf),
                bits => bits,
            };
            set_register(config, leaf, subleaf, register, 4, 4, part(0));
            set_register(config, leaf, subleaf, register, 16, 4, part(4));
        }
        (Word::Cpuid(leaf, subleaf, register), bits) if name == "family" => {
            set_register(config, leaf, subleaf, register, 8, 4, bits);
            set_register(config, leaf, subleaf, register, 20, 8, bits);
        }
        (Word::Cpuid(leaf, subleaf, register), bits) => {
            set_register(config, leaf, subleaf, register, shift, width, bits);
        }
    }
    Ok(())
}

fn set_register(
    config: &mut CpuidConfig,
    leaf: u32,
    subleaf: u32,
    register: CpuidRegister,
    shift: u32,
    width: u32,
    bits: Bits,
) {
    let mask = (u32::MAX >> (32 - width)) << shift;
    let policy = config.register(leaf, subleaf, register);
    for part in [&mut policy.ones, &mut policy.host, &mut policy.default] {
        *part &= !mask;
    }
    match bits {
        Bits::Number(number) => policy.ones |= number << shift,
        Bits::Host => policy.host |= mask,
        Bits::Default => policy.default |= mask,
    }
}

fn set_msr(config: &mut CpuidConfig, index: u32, shift: u32, bits: Bits) {
    let mask = 1 << shift;
    let policy = config.msr(index);
    for part in [&mut policy.ones, &mut policy.host, &mut policy.default] {
        *part &= !mask;
    }
    match bits {
        Bits::Number(0) => {}
        Bits::Number(_) => policy.ones |= mask,
        Bits::Host => policy.host |= mask,
        Bits::Default => policy.default |= mask,
    }
}

/// `LEAF[,SUBLEAF]:REGISTER=BITS,...`, one of xend's list.
pub(super) fn parse_leaf(text: &str, config: &mut CpuidConfig) -> Result<(), String> {
    let bad = |problem: &str| format!("{}: {problem}", shown(text));
    let (place, registers) =
        text.split_once(':').ok_or_else(|| bad("expected LEAF:REGISTER=BITS"))?;
    let number = |text: &str| {
        let number = super::integer(text).and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| bad("the leaf must be a number"))
    };
    let (leaf, subleaf) = match place.split_once(',') {
        None => (number(place)?, NO_SUBLEAF),
        Some((leaf, subleaf)) => (number(leaf)?, number(subleaf)?),
    };
    for part in registers.split(',').map(str::trim_start).filter(|part| !part.is_empty()) {
        let (register, bits) = part.split_once('=').ok_or_else(|| bad("expected REGISTER=BITS"))?;
        let register = match register {
            "eax" => CpuidRegister::Eax,
            "ebx" => CpuidRegister::Ebx,
            "ecx" => CpuidRegister::Ecx,
            "edx" => CpuidRegister::Edx,
            _ => return Err(bad("the register must be eax, ebx, ecx or edx")),
        };
        let mut policy = BitPolicy { ones: 0, host: 0, default: 0 };
        if bits.len() != 32 {
            return Err(bad("a register has exactly 32 bits, of 0, 1, x, k and s"));
        }
        for bit in bits.chars() {
            for part in [&mut policy.ones, &mut policy.host, &mut policy.default] {
                *part <<= 1;
            }
            match bit {
                '0' => {}
                '1' => policy.ones |= 1,
                'k' | 's' => policy.host |= 1,
                'x' => policy.default |= 1,
                _ => return Err(bad("a register has exactly 32 bits, of 0, 1, x, k and s")),
            }
        }
        *config.register(leaf, subleaf, register) = policy;
    }
    Ok(())
}

impl CpuidConfig {
    /// xend's list; `None` for an empty one.
    pub(crate) fn from_leaves(texts: Vec<String>) -> Result<Option<Self>, String> {
        let mut config = Self::new(CpuidText::Leaves(Vec::new()));
        texts.iter().try_for_each(|text| parse_leaf(text, &mut config))?;
        config.text = CpuidText::Leaves(texts);
        Ok(config.sets_anything().then_some(config))
    }

    pub(super) fn new(text: CpuidText) -> Self {
        Self { text, registers: Vec::new(), msrs: Vec::new() }
    }

    pub(super) fn sets_anything(&self) -> bool {
        !self.registers.is_empty() || !self.msrs.is_empty()
    }

    /// The policy of this register, which begins as the default.
    fn register(
        &mut self,
        leaf: u32,
        subleaf: u32,
        register: CpuidRegister,
    ) -> &mut BitPolicy<u32> {
        let is_it =
            |it: &CpuidOverride| (it.leaf, it.subleaf, it.register) == (leaf, subleaf, register);
        let index = self.registers.iter().position(is_it).unwrap_or_else(|| {
            self.registers.push(CpuidOverride { leaf, subleaf, register, bits: DEFAULT_32 });
            self.registers.len() - 1
        });
        &mut self.registers[index].bits
    }

    fn msr(&mut self, index: u32) -> &mut BitPolicy<u64> {
        let at = self.msrs.iter().position(|it| it.index == index).unwrap_or_else(|| {
            self.msrs.push(MsrOverride { index, bits: DEFAULT_64 });
            self.msrs.len() - 1
        });
        &mut self.msrs[at].bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> CpuidConfig {
        parse_words(text).unwrap().unwrap()
    }

    fn leaf(text: &str) -> Result<CpuidConfig, String> {
        let mut config = CpuidConfig::new(CpuidText::Leaves(vec![text.to_owned()]));
        parse_leaf(text, &mut config)?;
        Ok(config)
    }

    #[test]
    fn both_syntaxes_say_the_same() {
        let by_name = words("host,rdtscp=0");
        let by_bit = leaf("0x80000001:edx=xxxx0xxxxxxxxxxxxxxxxxxxxxxxxxxx").unwrap();
        assert_eq!(by_name.registers, by_bit.registers);
        let by_name = words("host,sse4_2=k,x2apic=1,vmx=x,family=6,stepping=3");
        let by_bit =
            leaf("1:ecx=xxxxxxxxxx1kxxxxxxxxxxxxxxxxxxxx, eax=xxxx00000000xxxxxxxx0110xxxx0011")
                .unwrap();
        assert_eq!(by_name.registers, by_bit.registers);
        let sub = leaf("7,0:ebx=1xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx").unwrap().registers[0];
        assert_eq!((sub.leaf, sub.subleaf, sub.bits.ones), (7, 0, 1 << 31));
    }

    #[test]
    fn a_large_family_and_a_model_are_split() {
        let eax = words("host,family=0x17,model=0x31").registers[0].bits;
        assert_eq!(eax.ones, 0x0083_0f10, "{:#x}", eax.ones);
        assert_eq!(eax.default, 0xf000_f00f);
    }

    #[test]
    fn a_bit_of_a_model_specific_register_is_one_of_its_own() {
        let config = words("host,rdcl-no=1,rsba=0");
        assert!(config.registers.is_empty());
        let bits = config.msrs[0].bits;
        assert_eq!((config.msrs[0].index, bits.ones, bits.default), (0x10a, 1, !0b101));
    }

    #[test]
    fn host_alone_sets_nothing() {
        for text in ["", "host", "host,"] {
            assert_eq!(parse_words(text), Ok(None), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            ("guest,x2apic=1", "\"guest\": the first word must be host"),
            ("host,x2apic", "\"x2apic\": expected NAME=VALUE"),
            ("host,rdtspc=0", "\"rdtspc=0\": no CPU feature has this name; did you mean rdtscp?"),
            ("host,vmx=y", "\"vmx=y\": the value must be a number, x (default), k or s (host)"),
            ("host,vmx=2", "\"vmx=2\": the value must fit into 1 bits"),
            ("host,family=271", "\"family=271\": the family is at most 270"),
        ] {
            let words = parse_words(text).map_err(|error| (error == problem, error));
            assert!(matches!(words, Err((true, _))), "{text}: {words:?}");
        }
        for text in [
            "1",
            "a:eax=1",
            "1:efx=0",
            "1:eax",
            "1:eax=01",
            "1:eax=2xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ] {
            assert!(leaf(text).is_err(), "{text}");
        }
    }
}
