//! Many domains die at once: `mass [--vms N]`. The cost must be linear in their number.

use sim::Release;
use sim_trials::mass;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut vms = 1000_u16;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--vms" => vms = arguments.next().ok_or("--vms wants a number")?.parse()?,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    for release in [Release::Xen4_17, Release::Xen4_22] {
        let (few, many) = (mass::run(release, 10)?, mass::run(release, vms)?);
        mass::check(release, &few, &many)?;
        println!("{release:?}: {many:?}");
    }
    Ok(())
}
