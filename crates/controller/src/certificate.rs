//! The webhook's certificate: made by ourselves, by an authority that lives as long as one certificate and whose key is
//! forgotten at once. The next one is staged first: its authority is trusted before anybody is shown it, so that no
//! admission fails while it changes.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub chain: String,
    pub key: String,
    pub authority: String,
    /// Seconds since the epoch.
    pub from: u64,
    pub until: u64,
}

/// Clocks differ a little.
const SKEW: u64 = 300;

pub fn make(names: &[String], now: u64, life: Duration) -> Result<Certificate, rcgen::Error> {
    let (from, until) = (now, now + life.as_secs().max(1));
    let time = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // A name of its own for each: whoever verifies looks an issuer up by its name.
    params.distinguished_name.push(DnType::CommonName, format!("beeline-controller-{now}-{:08x}", tag(&key)));
    (params.not_before, params.not_after) = (time(from.saturating_sub(SKEW)), time(until));
    let authority = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "beeline-controller");
    (params.not_before, params.not_after) = (time(from.saturating_sub(SKEW)), time(until));
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = params.signed_by(&own, &issuer)?;
    Ok(Certificate { chain: leaf.pem(), key: own.serialize_pem(), authority: authority.pem(), from, until })
}

fn tag(key: &KeyPair) -> u32 {
    key.public_key_raw().iter().fold(0, |tag: u32, byte| tag.rotate_left(5) ^ u32::from(*byte))
}

/// What to do about a certificate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Keep,
    /// There is none, or it has run out: another at once.
    Make,
    /// It is old: make the next one, and let its authority be trusted.
    Stage,
    /// Everybody trusts the next one by now: show it.
    Promote,
}

/// `staged`: since when the next one's authority is trusted.
pub fn step(now: u64, current: Option<(u64, u64)>, staged: Option<u64>, life: Duration) -> Step {
    let Some((from, until)) = current else { return Step::Make };
    let old = from + (until.saturating_sub(from)) * 2 / 3;
    match staged {
        _ if now >= until => Step::Make,
        Some(since) if now >= since + settle(life).as_secs() => Step::Promote,
        None if now >= old => Step::Stage,
        _ => Step::Keep,
    }
}

/// How long an API server may take to hear of another authority.
pub fn settle(life: Duration) -> Duration {
    (life / 6).clamp(Duration::from_secs(2), Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificates_life() {
        let day = Duration::from_secs(86_400);
        assert_eq!(step(0, None, None, day), Step::Make);
        assert_eq!(step(57_599, Some((0, 86_400)), None, day), Step::Keep);
        assert_eq!(step(57_600, Some((0, 86_400)), None, day), Step::Stage);
        assert_eq!(step(57_601, Some((0, 86_400)), Some(57_600), day), Step::Keep);
        assert_eq!(step(57_660, Some((0, 86_400)), Some(57_600), day), Step::Promote);
        assert_eq!(step(86_400, Some((0, 86_400)), Some(86_399), day), Step::Make);
    }
}
