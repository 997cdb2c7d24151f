//! CA certificates: kubeconfigs hold them as PEM, join codes as DER, which is shorter.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// One PEM text of all certificates, in lines of 64 characters, which every reader accepts.
pub(crate) fn to_pem(authorities: &[Vec<u8>]) -> String {
    authorities.iter().map(|der| pem_block(der)).collect()
}

fn pem_block(der: &[u8]) -> String {
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
    fn pem_decodes_to_the_same_certificates() {
        let authorities = vec![vec![0x30; 700], vec![1, 2, 3]];
        let text = to_pem(&authorities);
        let read: Vec<Vec<u8>> =
            CertificateDer::pem_slice_iter(text.as_bytes()).map(|der| der.unwrap().to_vec()).collect();
        assert_eq!(read, authorities);
    }
}
