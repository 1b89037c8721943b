package payments;

import jakarta.validation.constraints.NotNull;

public record Order(@NotNull String id, @NotNull Integer cents) {}
