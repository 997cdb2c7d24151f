//! The webhook's certificate. The controller generates it together with a CA that lives as long as the certificate and
//! whose key is discarded at once. The next certificate is prepared first: its CA is trusted before the certificate is
//! served, so that no admission request fails during a rotation.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub chain: String,
    pub key: String,
    pub ca: String,
    /// Validity in seconds since the Unix epoch.
    pub not_before: u64,
    pub not_after: u64,
}

/// The clocks of two hosts may differ by this many seconds.
const CLOCK_SKEW: u64 = 300;

pub fn generate(names: &[String], now: u64, lifetime: Duration) -> Result<Certificate, rcgen::Error> {
    let (not_before, not_after) = (now, now + lifetime.as_secs().max(1));
    let time = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let ca_key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Each CA has its own name, because verifiers find an issuer by its name.
    params.distinguished_name.push(DnType::CommonName, format!("beeline-controller-{now}-{:08x}", key_hash(&ca_key)));
    (params.not_before, params.not_after) = (time(not_before.saturating_sub(CLOCK_SKEW)), time(not_after));
    let ca = params.self_signed(&ca_key)?;
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "beeline-controller");
    (params.not_before, params.not_after) = (time(not_before.saturating_sub(CLOCK_SKEW)), time(not_after));
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = params.signed_by(&key, &issuer)?;
    Ok(Certificate { chain: leaf.pem(), key: key.serialize_pem(), ca: ca.pem(), not_before, not_after })
}

fn key_hash(key: &KeyPair) -> u32 {
    key.public_key_raw().iter().fold(0, |hash: u32, byte| hash.rotate_left(5) ^ u32::from(*byte))
}

/// The next step of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStep {
    Wait,
    /// There is no valid certificate: generate one and serve it at once.
    Generate,
    /// The certificate is old: generate the next one and publish its CA.
    Prepare,
    /// Every API server trusts the next certificate by now: serve it.
    Promote,
}

/// `validity` is that of the current certificate. `next_published_at` is when the CA of the next certificate was
/// published.
pub fn rotation_step(
    now: u64,
    validity: Option<(u64, u64)>,
    next_published_at: Option<u64>,
    lifetime: Duration,
) -> RotationStep {
    let Some((not_before, not_after)) = validity else { return RotationStep::Generate };
    let prepare_at = not_before + (not_after.saturating_sub(not_before)) * 2 / 3;
    match next_published_at {
        _ if now >= not_after => RotationStep::Generate,
        Some(since) if now >= since + propagation_time(lifetime).as_secs() => RotationStep::Promote,
        None if now >= prepare_at => RotationStep::Prepare,
        _ => RotationStep::Wait,
    }
}

/// How long an API server may take to load a changed webhook configuration.
fn propagation_time(lifetime: Duration) -> Duration {
    (lifetime / 6).clamp(Duration::from_secs(2), Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_certificate_is_prepared_at_two_thirds_of_the_lifetime_and_promoted_a_minute_later() {
        let day = Duration::from_secs(86_400);
        assert_eq!(rotation_step(0, None, None, day), RotationStep::Generate);
        assert_eq!(rotation_step(57_599, Some((0, 86_400)), None, day), RotationStep::Wait);
        assert_eq!(rotation_step(57_600, Some((0, 86_400)), None, day), RotationStep::Prepare);
        assert_eq!(rotation_step(57_601, Some((0, 86_400)), Some(57_600), day), RotationStep::Wait);
        assert_eq!(rotation_step(57_660, Some((0, 86_400)), Some(57_600), day), RotationStep::Promote);
        assert_eq!(rotation_step(86_400, Some((0, 86_400)), Some(86_399), day), RotationStep::Generate);
    }
}
