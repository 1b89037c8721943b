package payments;

import jakarta.validation.Valid;
import org.slf4j.LoggerFactory;
import org.springframework.dao.DataAccessException;
import org.springframework.http.HttpStatus;
import org.springframework.jdbc.CannotGetJdbcConnectionException;
import org.springframework.transaction.CannotCreateTransactionException;
import org.springframework.web.bind.annotation.*;

@RestController
public class Payments {
    private final Charges charges;

    Payments(Charges charges) {
        this.charges = charges;
    }

    // A body that is no order is answered 400, another content type 415: dead letters.
    @PostMapping("/payments")
    @ResponseStatus(HttpStatus.NO_CONTENT)
    void charge(@RequestHeader("Onceward-Token") String token, @Valid @RequestBody Order order) {
        charges.charge(token, order);
    }

    @PostMapping("/payments/invoiced")
    @ResponseStatus(HttpStatus.NO_CONTENT)
    void chargeInvoiced(@RequestHeader("Onceward-Token") String token, @Valid @RequestBody Order order) {
        charges.chargeInvoiced(token, order);
    }

    @PostMapping("/payments/at-once")
    @ResponseStatus(HttpStatus.NO_CONTENT)
    void chargeAtOnce(@RequestHeader("Onceward-Token") String token, @Valid @RequestBody Order order) {
        charges.chargeAtOnce(token, order);
    }

    @ExceptionHandler({CannotCreateTransactionException.class, CannotGetJdbcConnectionException.class})
    @ResponseStatus(HttpStatus.SERVICE_UNAVAILABLE) // the database cannot be reached
    void unreachable() {}

    @ExceptionHandler(DataAccessException.class)
    @ResponseStatus(HttpStatus.INTERNAL_SERVER_ERROR) // rolled back; Onceward reads the row and does what is right
    void failed(DataAccessException error) {
        LoggerFactory.getLogger(Payments.class).error(error.getMessage());
    }
}
