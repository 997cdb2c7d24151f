//! Certificates of authorities between PEM, as kubeconfigs carry them, and DER, which is shorter.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// One PEM text of them all, lines of 64 characters as everybody reads them.
pub(crate) fn pem(authorities: &[Vec<u8>]) -> String {
    authorities.iter().map(|der| block(der)).collect()
}

fn block(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line));
    let body: Vec<_> = lines.collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", body.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    #[test]
    fn is_read_again_as_it_was() {
        let authorities = vec![vec![0x30; 700], vec![1, 2, 3]];
        let text = pem(&authorities);
        let read: Vec<Vec<u8>> =
            CertificateDer::pem_slice_iter(text.as_bytes()).map(|der| der.unwrap().to_vec()).collect();
        assert_eq!(read, authorities);
    }
}
